"""Files in, report out: read, look at everything together, apply the rules, then the ignores.

Nothing here prints, and no rule sees a file: order is read -> world -> rules -> ignores.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from holdfast.lint.document import Document, load_text, read, unread
from holdfast.lint.finding import Finding, Hit, Severity
from holdfast.lint.ignores import Ignore, apply, of_annotations, of_comments
from holdfast.lint.objects import Object, objects
from holdfast.lint.platform import Platform
from holdfast.lint.registry import ON_PATCHES, Context, Rule, all_rules, subjects
from holdfast.lint.world import World
from holdfast.platform import Platform as PlatformDocument
from holdfast.platform import reading
from holdfast.platform.cluster import nearest
from holdfast.support.errors import InputError
from holdfast.support.printable import MOST_CHARACTERS

SUFFIXES = (".yaml", ".yml", ".json")
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "cdktf.out"}
MOST_HITS = 100  # of one rule about one object: a flood hides what else is wrong
_DIRECTIVE = re.compile(r"^#\s*holdfast:\s*environment=(\S+)\s*$", re.MULTILINE)
# Linter's own findings about text that is not judged.
_TROUBLES = {
    "broken": "HF904",
    "template": "HF905",
    "huge": "HF906",
    "duplicate": "HF503",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    platforms: Sequence[PlatformDocument] = ()
    """A file is judged by the one that its `# holdfast: environment=NAME` line names, else by the
    first; none given: each file by the nearest platform.json.
    """
    default: Callable[[], PlatformDocument] | None = None
    """For a file without a platform.json at or above its folder."""


@dataclass
class File:
    path: str
    documents: list[Document]
    comments: list[Ignore]
    environment: str
    """That it names itself; empty: none."""


@dataclass(kw_only=True)
class Report:
    files: int = 0
    objects: int = 0
    unjudged: int = 0
    """Documents that are templates, broken, or too large."""
    foreign: int = 0
    """YAML documents that are no Kubernetes objects."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def active(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.suppressed]

    @property
    def suppressed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.suppressed]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.active)


def collect(paths: Iterable[Path]) -> list[Path]:
    """The files to read: named ones whatever their suffix, and YAML and JSON below folders."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(sorted(_below(path))))
        elif path.exists():
            found[path] = None
        else:
            raise InputError(
                "nothing at this path",
                got=path,
                allowed="files and folders",
                fix="correct the path",
            )
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name.startswith(".") or path.name in SKIPPED_FOLDERS
        if path.is_dir() and not path.is_symlink() and not hidden:
            yield from _below(path)
        elif path.suffix in SUFFIXES and path.name != reading.FILE and path.is_file():
            yield path


def lint(paths: Iterable[Path], options: Options) -> Report:
    """Judge everything below `paths`; the files are seen as one set for each environment."""
    # In this process: to receive parsed files from another one takes longer than to parse them.
    return judge([_read_file(path) for path in collect(paths)], options)


def lint_texts(texts: dict[str, str], options: Options) -> Report:
    """The same for texts by file name."""
    return judge([read_text(name, text) for name, text in texts.items()], options)


def _read_file(path: Path) -> File:
    try:
        text = load_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
        return File(path.as_posix(), [unread("broken", reason)], [], "")
    return read_text(path.as_posix(), text)


def read_text(name: str, text: str) -> File:
    return File(name, list(read(text)), of_comments(name, text), named_by(text))


def named_by(text: str) -> str:
    """The environment that a file names itself; empty: none."""
    named = _DIRECTIVE.search(text, 0, 2_000)
    return named.group(1) if named else ""


def judge(files: list[File], options: Options) -> Report:
    report = Report(files=len(files))
    groups: dict[str, tuple[PlatformDocument, list[File]]] = {}
    for file, platform in zip(files, _platforms(files, options), strict=True):
        groups.setdefault(str(platform), (platform, []))[1].append(file)
    for platform, mine in groups.values():
        _judge_environment(mine, Platform(platform), report)
    report.findings.sort(key=lambda f: (f.file, f.mark.line, f.mark.column, f.rule))
    return report


def _platforms(files: list[File], options: Options) -> Iterator[PlatformDocument]:
    """Of each file. Raises InputError where a file names another platform than those given, or none
    is near it.
    """
    near = dict[Path, PlatformDocument | None]()
    for file in files:
        folder = Path(file.path).parent
        if not options.platforms and folder not in near:
            near[folder] = nearest(None, folder) or (options.default() if options.default else None)
        known = options.platforms or [found for found in (near[folder],) if found]
        if not known:
            raise InputError(
                "no platform to judge by",
                got=f"no {reading.FILE} at or above {file.path}",
                allowed="the document of a platform",
                fix="--platform FILE; python -m infra describe ENV writes it",
            )
        chosen = next((each for each in known if each.name == file.environment), None)
        if chosen is None and file.environment:
            raise InputError(
                f"{file.path} is of another platform",
                got=file.environment,
                allowed=", ".join(p.name for p in known),
                fix=f"--platform with the document of {file.environment}",
            )
        yield chosen or known[0]


def _judge_environment(files: list[File], platform: Platform, report: Report) -> None:
    found = [
        obj for file in files for document in file.documents for obj in objects(document, file.path)
    ]
    context = Context(platform, World(found))
    findings = [f for file in files for f in _troubles(file)]
    findings += [f for obj in found for f in _judge_object(obj, context)]
    documents = [document for file in files for document in file.documents]
    report.objects += len(found)
    report.unjudged += sum(any(t.kind != "duplicate" for t in d.troubles) for d in documents)
    report.foreign += sum(d.value is not None and not objects(d, "") for d in documents)
    ignores = [ignore for file in files for ignore in file.comments]
    ignores += [ignore for obj in found for ignore in of_annotations(obj)]
    report.findings += apply(ignores, findings)


def _judge_object(obj: Object, context: Context) -> Iterator[Finding]:
    patch = context.world.is_patch(obj)
    for rule in all_rules().values():
        if rule.check is None or (patch and rule.id not in ON_PATCHES):
            continue
        for subject in subjects(obj, rule):
            for hit in islice(rule.check(subject, context), MOST_HITS):
                yield _finding(rule, hit, obj)


def _finding(rule: Rule, hit: Hit, obj: Object) -> Finding:
    mark = obj.document.at((*obj.root, *hit.path), of_key=hit.on_key)
    message = hit.message[:MOST_CHARACTERS]  # a name out of a file may be as long as the file
    where = ".".join(map(str, hit.path))
    fix = hit.fix or rule.fix
    return rule.finding(
        message,
        obj.file,
        mark,
        fix=fix,
        object_name=obj.title,
        where=where,
        basis=hit.basis,
    )


def _troubles(file: File) -> Iterator[Finding]:
    for document in file.documents:
        for trouble in document.troubles:
            yield all_rules()[_TROUBLES[trouble.kind]].finding(
                trouble.message, file.path, trouble.mark
            )
