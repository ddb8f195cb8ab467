"""What other distributions add: the objects of an entry point group."""

from importlib.metadata import distributions

from holdfast.contract.errors import InputError


def extensions(group: str) -> list[tuple[str, str, object]]:
    """(distribution, name, object) of each entry point, by name. InputError where one cannot be imported."""
    found: dict[tuple[str, str], object] = {}
    for distribution in distributions():
        for point in distribution.entry_points:
            if point.group == group and (distribution.name, point.name) not in found:
                try:
                    found[distribution.name, point.name] = point.load()
                except (ImportError, AttributeError) as error:
                    got = f"{point.value} of {distribution.name}: {error}"
                    fix = f"correct or uninstall {distribution.name}"
                    raise InputError(
                        f"extension of {group}", got=got, allowed="a module that imports", fix=fix
                    ) from error
    return [(*key, found[key]) for key in sorted(found)]
