"""What other distributions add by entry point: drills, lint rules, predictors, checkpoint stores."""

from importlib.metadata import entry_points

from holdfast.support.errors import InputError


def extensions(group: str) -> list[tuple[str, str, object]]:
    """(distribution, name, object) of each entry point of `group`, sorted. InputError: one cannot
    be imported.
    """
    found: list[tuple[str, str, object]] = []
    for point in entry_points(group=group):
        distribution = point.dist.name if point.dist else "a distribution without a name"
        try:
            found.append((distribution, point.name, point.load()))
        except Exception as error:  # foreign code runs here, and may raise anything
            got = f"{type(error).__name__}: {error}"
            raise refused(
                distribution, f"{group}: {point.name} = {point.value}", got, "an object to import"
            ) from error
    return sorted(found, key=lambda each: each[:2])


def refused(distribution: str, what: str, got: str, allowed: str) -> InputError:
    """The error about something that a distribution adds and that cannot be used."""
    fix = f"pip uninstall {distribution}, or tell its authors"
    return InputError(
        f"the distribution {distribution} provides an invalid extension: {what}",
        got=got,
        allowed=allowed,
        fix=fix,
    )
