"""Divides the objects of a run into sets, each for one cluster.

A repository may hold several clusters, overlays, or samples that have nothing to do with each
other. If two files define an object of the same name differently, they belong to different
clusters, and a name in one of them is not looked up in the folder of the other.
"""

# Why it is so: infra/decisions/0190.

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from holdfast.lint.object_index import ObjectIndex
from holdfast.lint.objects import DEFAULT_NAMESPACE, Identity, Object, as_texts

_CLUSTER_KINDS = frozenset(
    (
        "AdmissionCheck",
        "APIService",
        "ClusterQueue",
        "ClusterRole",
        "ClusterRoleBinding",
        "ComputeClass",
        "CustomResourceDefinition",
        "GatewayClass",
        "IngressClass",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "ProvisioningRequestConfig",
        "ResourceFlavor",
        "RuntimeClass",
        "StorageClass",
        "Topology",
        "WorkloadPriorityClass",
    )
)
"""Kinds without a namespace, which objects of any folder may name."""
_EXTENSIONS = ("APIService", "CustomResourceDefinition")
"""Kinds whose objects of one name are interchangeable: it does not matter which one is found."""
_KUSTOMIZATION = "Kustomization"
_MOST_LOOKUPS = 4_000_000
"""Sets times objects: beyond it all are one set, so that no input takes minutes."""
Folder = tuple[str, ...]
Definitions = dict[Identity, Object | None]
"""The one object of each identity in a folder; None where there are several."""


@dataclass(frozen=True)
class ObjectSet:
    objects: list[Object]
    index: ObjectIndex
    """Index over these, and over those of other sets that they may name."""


def divide(objects: list[Object], index: ObjectIndex) -> list[ObjectSet]:
    """Returns all objects, each in one set. `index` is the index over all of them."""
    places_by_identity = _find_conflicts(objects, index)
    collections = set[Folder]()
    for places in places_by_identity.values():
        collections |= _find_collections(places)
    if not collections:
        return [ObjectSet(objects, index)]
    by_root: dict[Folder, list[Object]] = defaultdict(list)
    contradicting_files = set[Folder]().union(*places_by_identity.values())
    for obj in objects:
        root = _find_root(_get_folder(obj), collections)
        place = _get_place(obj)
        if root in collections and place in contradicting_files:
            root = place
        by_root[root].append(obj)
    if len(by_root) * len(objects) > _MOST_LOOKUPS:
        return [ObjectSet(objects, index)]
    # A namespace that no file makes may be put in later, and all samples may state `default`.
    made_namespaces = set(index.list_names("Namespace")) - {DEFAULT_NAMESPACE}
    shared_objects: list[Object] = []
    by_folder: dict[Folder, list[Object]] = defaultdict(list)
    for obj in objects:
        by_folder[_get_folder(obj)].append(obj)
        is_unique = obj.identity not in places_by_identity or obj.kind in _EXTENSIONS
        if is_unique and (obj.kind in _CLUSTER_KINDS or obj.namespace in made_namespaces):
            shared_objects.append(obj)
    definitions: dict[Folder, Definitions] = {}
    for folder, neighbors in by_folder.items():
        definitions[folder] = _find_definitions(neighbors)
    sets: list[ObjectSet] = []
    for root, members in by_root.items():
        visible_objects = {id(obj): obj for obj in members}
        for obj in _list_bases(members, by_folder):
            visible_objects[id(obj)] = obj
        for obj in [*_list_above(root, members, definitions), *shared_objects]:
            visible_objects[id(obj)] = obj
        sets.append(ObjectSet(members, ObjectIndex(visible_objects.values())))
    return sets


def _find_definitions(neighbors: Iterable[Object]) -> Definitions:
    definitions: Definitions = {}
    for obj in neighbors:
        definitions[obj.identity] = None if obj.identity in definitions else obj
    return definitions


def _list_above(
    root: Folder,
    members: list[Object],
    definitions: dict[Folder, Definitions],
) -> Iterator[Object]:
    """Yields what the files of the folders above define once, the nearest of each name."""
    identities = {obj.identity for obj in members}
    for depth in reversed(range(len(root) + 1)):
        own_definitions = definitions.get(root[:depth], {})
        for identity, obj in own_definitions.items():
            if obj is not None and identity not in identities:
                yield obj
        identities |= own_definitions.keys()


def _get_place(obj: Object) -> Folder:
    """Returns its folders and its file: files of one folder may contradict each other too."""
    return PurePosixPath(obj.file).parts


def _get_folder(obj: Object) -> Folder:
    return _get_place(obj)[:-1]


def _find_conflicts(objects: Iterable[Object], index: ObjectIndex) -> dict[Identity, set[Folder]]:
    """Returns the places of each object that is defined in two ways."""
    by_identity: dict[Identity, list[Object]] = defaultdict(list)
    for obj in objects:
        if obj.name and obj.kind != _KUSTOMIZATION:
            by_identity[obj.identity].append(obj)
    conflicts: dict[Identity, set[Folder]] = {}
    for identity, namesakes in by_identity.items():
        if len(namesakes) == 1:
            continue
        # A patch and its base are one object, and a copy is the same one.
        whole = [obj for obj in namesakes if not index.is_patch(obj)]
        places = set(map(_get_place, whole))
        if len(places) > 1 and any(obj.body != whole[0].body for obj in whole):
            conflicts[identity] = places
    return conflicts


def _find_collections(places: Iterable[Folder]) -> set[Folder]:
    """Returns the folders below which these places part, and all folders above those."""
    branches: dict[Folder, set[Folder]] = defaultdict(set)
    for place in places:
        for depth in range(len(place)):
            branches[place[:depth]].add(place[depth : depth + 1])
    collections = set[Folder]()
    for folder, names in branches.items():
        if len(names) > 1:
            for depth in range(len(folder) + 1):
                collections.add(folder[:depth])
    return collections


def _find_root(folder: Folder, collections: set[Folder]) -> Folder:
    """Returns the highest folder above or at this one that is no collection, or this one."""
    for depth in range(len(folder) + 1):
        if folder[:depth] not in collections:
            return folder[:depth]
    return folder


def _list_bases(members: list[Object], by_folder: dict[Folder, list[Object]]) -> Iterator[Object]:
    """Yields the objects of the folders that a kustomization builds on."""
    queue = [obj for obj in members if obj.kind == _KUSTOMIZATION]
    visited_folders = set(map(_get_folder, queue))
    while queue:
        kustomization = queue.pop()
        folder = PurePosixPath(*_get_folder(kustomization))
        for field in ("resources", "bases", "components"):
            for path in as_texts(kustomization.body.get(field)):
                base = PurePosixPath(posixpath.normpath(folder / path)).parts
                if base in visited_folders:
                    continue
                visited_folders.add(base)
                for obj in by_folder.get(base, []):
                    yield obj
                    if obj.kind == _KUSTOMIZATION:
                        queue.append(obj)
