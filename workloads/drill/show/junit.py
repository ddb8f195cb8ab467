"""JUnit XML of a journal: one case an objective, so that any CI shows which promise broke.

In the order and with the attributes of Ant's schema, the strictest of those in use.
"""

from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from workloads.drill.show.numbers import number, sentence


def junit(journal: dict[str, Any]) -> str:
    """`broken` is a failure, `not measured` is skipped; a drill that showed nothing is an error of its own."""
    drill = journal["experiment"]["extensions"][0]["drill"]["name"]
    suite = Element("testsuite", _head(journal, drill))
    SubElement(suite, "properties")
    for each in journal["objectives"]:
        case = _case(suite, drill, each["promise"])
        told = f"{each['wanted']}, measured {number(each['measured'])}"
        if each["verdict"] == "broken":
            SubElement(case, "failure", message=told, type="broken").text = sentence(journal)
        elif each["verdict"] == "not measured":
            SubElement(case, "skipped", message=told)
    if not journal["objectives"] or journal["verdict"] in ("inconclusive", "stopped"):
        case = _case(suite, drill, "the drill itself")
        SubElement(case, "error", message=journal["verdict"], type=journal["verdict"]).text = sentence(journal)
    elif journal["deviated"]:
        case = _case(suite, drill, "steady again")
        told = "the steady state was not met again"
        SubElement(case, "failure", message=told, type="deviated").text = sentence(journal)
    SubElement(suite, "system-out").text = "\n".join(f"{e['t']} {e['step']}: {e['what']}" for e in journal["timeline"])
    SubElement(suite, "system-err")
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(1 for _ in suite.iter(tag))))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _head(journal: dict[str, Any], drill: str) -> dict[str, str]:
    return {
        "name": f"drill.{drill}",
        "package": "holdfast",
        "id": "0",
        "hostname": journal["node"] or "unknown",
        "timestamp": journal["start"][: len("2026-01-01T00:00:00")],  # the schema knows no fraction and no zone
        "time": f"{journal['duration']:.3f}",
    }


def _case(suite: Element, drill: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=f"drill.{drill}", name=name, time="0")
