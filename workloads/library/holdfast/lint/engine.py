"""Lints files: reads them, looks at everything together, applies the rules, then the ignores.

Nothing here prints, and no rule sees a file.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.lint.accessors import is_left_open
from holdfast.lint.document import (
    MAX_READ_BYTES,
    Document,
    decode,
    load_text,
    make_unread,
    read,
)
from holdfast.lint.finding import Finding, Hit, Severity
from holdfast.lint.ignores import Ignore, apply, parse_annotations, parse_comments
from holdfast.lint.object_index import ObjectIndex
from holdfast.lint.object_sets import divide
from holdfast.lint.objects import Object, dig, objects
from holdfast.lint.platform import Platform
from holdfast.lint.registry import ON_PATCHES, Context, Rule, all_rules, subjects
from holdfast.lint.settings import Settings
from holdfast.platform import Platform as PlatformDocument
from holdfast.platform import codec
from holdfast.platform.cluster import find_nearest
from holdfast.support.errors import InputError
from holdfast.support.printable import MOST_CHARACTERS

SUFFIXES = (".yaml", ".yml", ".json")
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "cdktf.out"}
# Hits of one rule about one object: a flood hides what else is wrong.
MAX_HITS = 100
_COMMANDS = frozenset(("command", "args"))
_DIRECTIVE = re.compile(r"^#\s*holdfast:\s*environment=(\S+)\s*$", re.MULTILINE)
# Linter's own findings about text that is not judged.
_TROUBLES = {
    "broken": "HF904",
    "template": "HF905",
    "huge": "HF906",
    "duplicate": "HF503",
}


RenderJob = Callable[[Any, str, PlatformDocument], str]
"""Takes the document of a job or service file, its path and its platform."""
STANDARD_INPUT = Path("-")
RENDERED_SCHEMAS = ("holdfast.job/", "holdfast.service/")


@dataclass(frozen=True, kw_only=True)
class Options:
    platforms: Sequence[PlatformDocument] = ()
    """A file is judged by the one that its `# holdfast: environment=NAME` line names, else by the
    first; none given: each file by the nearest platform.json.
    """
    render: "RenderJob | None" = None
    """Makes the manifest of a job or service file, which is judged instead of it; None: no file is
    one.
    """
    default: Callable[[], PlatformDocument] | None = None
    """Gives the platform of a file without a platform.json at or above its folder."""
    find_settings: Callable[[Path], Settings | None] | None = None
    """Gives the settings of a repository for the files of a folder; None: there are none."""


@dataclass
class File:
    path: str
    documents: list[Document]
    comments: list[Ignore]
    environment: str
    """Environment that the file names itself; empty where it names none."""


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
    """Lists the files to read: named ones whatever their suffix, and YAML and JSON below folders.

    Raises InputError where nothing is at a path.
    """
    # A dict keeps the order and drops files that are named twice.
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files.update(dict.fromkeys(sorted(_walk(path))))
        elif path.exists() or path == STANDARD_INPUT:
            files[path] = None
        else:
            raise InputError(
                "no such file or folder",
                got=path,
                allowed="files and folders",
                fix="correct the path",
            )
    return list(files)


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        is_hidden = path.name.startswith(".") or path.name in SKIPPED_FOLDERS
        if path.is_dir() and not path.is_symlink() and not is_hidden:
            yield from _walk(path)
        elif path.suffix in SUFFIXES and path.name != codec.FILE and path.is_file():
            yield path


def lint(paths: Iterable[Path], options: Options) -> Report:
    """Judges everything below `paths`; files of one environment and cluster are seen together."""
    # In this process: to receive parsed files from another one takes longer than to parse them.
    return judge([_load_file(path) for path in collect(paths)], options)


def lint_texts(texts: dict[str, str], options: Options) -> Report:
    """Judges texts by file name, as `lint` judges files."""
    return judge([parse_text(name, text) for name, text in texts.items()], options)


def _load_file(path: Path) -> File:
    is_input = path == STANDARD_INPUT
    name = "standard input" if is_input else path.as_posix()
    try:
        text = decode(sys.stdin.buffer.read(MAX_READ_BYTES)) if is_input else load_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
        return File(name, [make_unread("broken", reason)], [], "")
    return parse_text(name, text)


def parse_text(name: str, text: str) -> File:
    return File(name, list(read(text)), parse_comments(name, text), find_environment(text))


def find_environment(text: str) -> str:
    """Returns the environment that a file names itself; empty where it names none."""
    match = _DIRECTIVE.search(text, 0, 2_000)
    return match.group(1) if match else ""


def judge(files: list[File], options: Options) -> Report:
    report = Report(files=len(files))
    groups: dict[str, tuple[PlatformDocument, list[File]]] = {}
    for file, platform in zip(files, _choose_platforms(files, options), strict=True):
        file = _render_job(file, platform, options)
        _, group_files = groups.setdefault(str(platform), (platform, []))
        group_files.append(file)
    for platform, group_files in groups.values():
        _judge_environment(group_files, Platform(platform), report)
    report.findings = list(_apply_settings(report.findings, options))
    report.findings.sort(key=_sort_key)
    return report


def _render_job(file: File, platform: PlatformDocument, options: Options) -> File:
    """Returns the manifest of a job or service file as a file of its own; other files stay.

    Raises InputError for a job or service next to another document, as `submit` does.
    """
    described = [document for document in file.documents if _is_rendered(document.value)]
    if options.render is None or not described:
        return file
    if len(file.documents) > 1:
        raise InputError(
            f"{file.path}: more than a job or service",
            got=f"{len(file.documents)} documents, {len(described)} of them jobs or services",
            allowed="one document",
            fix="give each job, service and manifest a file of its own",
        )
    (document,) = described
    if document.troubles:
        return file
    try:
        text = options.render(document.value, file.path, platform)
    except InputError as error:
        raise _name_file(error, file.path) from error
    return parse_text(f"{file.path} as rendered", text)


def _name_file(error: InputError, path: str) -> InputError:
    """Returns a refusal that says which of the files it is about."""
    message = error.what
    if path not in message:
        message = f"{path}: {message}"
    return type(error)(
        message,
        got=error.got,
        allowed=error.allowed,
        fix=error.fix,
    )


def _is_rendered(body: Any) -> bool:
    schema = body.get("schema") if isinstance(body, dict) else None
    return str(schema).startswith(RENDERED_SCHEMAS)


def _apply_settings(findings: list[Finding], options: Options) -> Iterator[Finding]:
    by_folder: dict[Path, Settings | None] = {}
    for finding in findings:
        folder = Path(finding.file).parent
        if options.find_settings and folder not in by_folder:
            by_folder[folder] = options.find_settings(folder)
        settings = by_folder.get(folder)
        yield settings.apply(finding) if settings else finding


def _sort_key(finding: Finding) -> tuple[str, int, int, str]:
    return finding.file, finding.mark.line, finding.mark.column, finding.rule


def _choose_platforms(files: list[File], options: Options) -> Iterator[PlatformDocument]:
    """Yields the platform of each file.

    Raises InputError where a file names another platform than those given, or none is near it.
    """
    by_folder: dict[Path, PlatformDocument | None] = {}
    for file in files:
        platforms = list(options.platforms)
        if not platforms:
            folder = Path(file.path).parent
            if folder not in by_folder:
                by_folder[folder] = find_nearest(None, folder) or _get_default(options)
            platforms = list(filter(None, [by_folder[folder]]))
        if not platforms:
            raise InputError(
                "no platform document found",
                got=f"no {codec.FILE} at or above {file.path}",
                allowed="the document of a platform",
                fix=(
                    "--platform FILE with the document of your platform team, or a"
                    " kubeconfig of its cluster"
                ),
            )
        yield _choose_platform(file, platforms)


def _get_default(options: Options) -> PlatformDocument | None:
    return options.default() if options.default else None


def _choose_platform(file: File, platforms: list[PlatformDocument]) -> PlatformDocument:
    for platform in platforms:
        if platform.name == file.environment:
            return platform
    if file.environment:
        raise InputError(
            f"{file.path} is of another platform",
            got=file.environment,
            allowed=", ".join(platform.name for platform in platforms),
            fix=f"--platform with the document of {file.environment}",
        )
    return platforms[0]


def _judge_environment(files: list[File], platform: Platform, report: Report) -> None:
    findings: list[Finding] = []
    ignores: list[Ignore] = []
    all_objects: list[Object] = []
    for file in files:
        ignores += file.comments
        for document in file.documents:
            document_objects = objects(document, file.path)
            all_objects += document_objects
            findings += _report_troubles(document, file)
            report.foreign += document.value is not None and not document_objects
            report.unjudged += not document.is_judged
    report.objects += len(all_objects)
    for object_set in divide(all_objects, ObjectIndex(all_objects)):
        context = Context(platform, object_set.index)
        for obj in object_set.objects:
            ignores += parse_annotations(obj)
            findings += _judge_object(obj, context)
    report.findings += apply(ignores, findings)


def _judge_object(obj: Object, context: Context) -> Iterator[Finding]:
    is_patch = context.index.is_patch(obj)
    for rule in all_rules().values():
        if rule.check is None or (is_patch and rule.id not in ON_PATCHES):
            continue
        for subject in subjects(obj, rule):
            for hit in islice(rule.check(subject, context), MAX_HITS):
                if not _is_left_open(hit, obj):
                    yield _make_finding(rule, hit, obj)


def _is_left_open(hit: Hit, obj: Object) -> bool:
    """Returns whether a value comes later. In a command, ${NAME} is a shell variable instead."""
    in_command = not _COMMANDS.isdisjoint(hit.path)
    return not in_command and is_left_open(dig(obj.body, *hit.path))


def _make_finding(rule: Rule, hit: Hit, obj: Object) -> Finding:
    path = (*obj.root, *hit.path)
    mark = obj.document.locate(path, of_key=hit.on_key)
    message = hit.message[:MOST_CHARACTERS]  # a name out of a file may be as long as the file
    return rule.finding(
        message,
        obj.file,
        mark,
        fix=hit.fix or rule.fix,
        object_name=obj.title,
        where=".".join(map(str, hit.path)),
        basis=hit.basis,
    )


def _report_troubles(document: Document, file: File) -> Iterator[Finding]:
    for trouble in document.troubles:
        rule = all_rules()[_TROUBLES[trouble.kind]]
        yield rule.finding(trouble.message, file.path, trouble.mark)
