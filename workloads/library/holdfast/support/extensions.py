"""Loads what other distributions add: drills, lint rules, predictors, checkpoint stores."""

from holdfast.support.errors import InputError


def load_extensions(group: str) -> list[tuple[str, str, object]]:
    """Returns (distribution, name, object) of each entry point of `group`, sorted.

    Raises InputError if one cannot be imported.
    """
    # It imports zipfile and email: a sixth of the start of an uploader, which loads no extension.
    from importlib.metadata import entry_points

    loaded: list[tuple[str, str, object]] = []
    for point in entry_points(group=group):
        distribution = point.dist.name if point.dist else "a distribution without a name"
        try:
            loaded.append((distribution, point.name, point.load()))
        except Exception as error:  # foreign code runs here, and may raise anything
            declaration = f"{group}: {point.name} = {point.value}"
            got = f"{type(error).__name__}: {error}"
            raise make_extension_error(
                distribution, declaration, got, "an object to import"
            ) from error
    return sorted(loaded, key=lambda extension: extension[:2])


def make_extension_error(distribution: str, what: str, got: str, allowed: str) -> InputError:
    """Returns the error about an extension that cannot be used."""
    return InputError(
        f"the distribution {distribution} provides an invalid extension: {what}",
        got=got,
        allowed=allowed,
        fix=f"pip uninstall {distribution}, or tell its authors",
    )
