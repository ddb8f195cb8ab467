"""JUnit XML of a journal: one case an objective, so that any CI shows which promise broke."""

from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from workloads.drill.show.numbers import number, sentence


def junit(journal: dict[str, Any]) -> str:
    """`broken` is a failure, `not measured` is skipped; a drill that showed nothing is an error of its own."""
    drill = journal["experiment"]["extensions"][0]["drill"]["name"]
    suite = Element("testsuite", name=f"drill.{drill}", timestamp=journal["start"], time=f"{journal['duration']:.3f}")
    for each in journal["objectives"]:
        case = SubElement(suite, "testcase", classname=f"drill.{drill}", name=each["promise"], time="0")
        told = f"{each['wanted']}, measured {number(each['measured'])}"
        if each["verdict"] == "broken":
            SubElement(case, "failure", message=told).text = sentence(journal)
        elif each["verdict"] == "not measured":
            SubElement(case, "skipped", message=told)
    if not journal["objectives"] or journal["verdict"] in ("inconclusive", "stopped"):
        case = SubElement(suite, "testcase", classname=f"drill.{drill}", name="the drill itself", time="0")
        SubElement(case, "error", message=journal["verdict"]).text = sentence(journal)
    elif journal["deviated"]:
        case = SubElement(suite, "testcase", classname=f"drill.{drill}", name="steady again", time="0")
        SubElement(case, "failure", message="the steady state was not met again").text = sentence(journal)
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(1 for _ in suite.iter(tag))))
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"
