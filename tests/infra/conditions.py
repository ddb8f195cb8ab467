"""Evaluates conditions of IAM bindings, as Google documents them.

Of Google's expression language this is the part that a platform writes: comparisons of attributes
of a resource and of the roles that a call grants, joined by `&&` and `||`, without parentheses.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

MAX_OPERATORS = 12  # in one expression, Google's documented limit
COMPARED = re.compile(r"""resource\.(name|type|service) (==|!=) (["'])([^"']*)\3""")
STARTS = re.compile(r"""resource\.(name|type|service)\.(starts|ends)With\((["'])([^"']*)\3\)""")
ONLY_ROLES = re.compile(
    r"api\.getAttribute\('iam\.googleapis\.com/modifiedGrantsByRole', \[\]\)"
    r"\.hasOnly\(\[([^\]]*)\]\)"
)


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """Attributes of a request that a condition can ask for."""

    name: str
    """`projects/_/buckets/BUCKET/objects/OBJECT`, for example."""
    type: str = ""
    service: str = ""
    modified_roles: Collection[str] = ()
    """Roles whose bindings the request changes."""


def holds(expression: str, attributes: Attributes) -> bool:
    """Tell whether the condition admits the request; an empty one admits all. Raises ValueError for
    any other form than those above.
    """
    if not expression:
        return True
    results = []
    for alternative in expression.split(" || "):
        # Every term is read, so that a broken one is noticed in any request.
        terms = [_term_holds(term.strip(), attributes) for term in alternative.split(" && ")]
        results.append(all(terms))
    if expression.count(" || ") + expression.count(" && ") > MAX_OPERATORS:
        raise ValueError(f"more than {MAX_OPERATORS} operators: {expression}")
    return any(results)


def _term_holds(term: str, attributes: Attributes) -> bool:
    compared = COMPARED.fullmatch(term)
    if compared:
        is_equal = getattr(attributes, compared[1]) == compared[4]
        return is_equal == (compared[2] == "==")
    starts = STARTS.fullmatch(term)
    if starts:
        value = getattr(attributes, starts[1])
        if starts[2] == "starts":
            return value.startswith(starts[4])
        return value.endswith(starts[4])
    only = ONLY_ROLES.fullmatch(term)
    if only:
        return {*attributes.modified_roles} <= {*re.findall(r"'([^']*)'", only[1])}
    raise ValueError(f"not an expression that is known here: {term}")
