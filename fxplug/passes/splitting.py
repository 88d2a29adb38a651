"""Splitting a program into submodules: by a callback, by size, and by a predicate."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from fxplug.errors import InvalidArgumentError, PartitionError
from fxplug.execute.demands import require_graph_module
from fxplug.ir import PATH_OPCODES
from fxplug.passes.dependences import is_call
from fxplug.passes.partition import group_nodes, order_partitions, requirements
from fxplug.passes.parts import Part, PartStyle, split_into
from fxplug.passes.weights import Loads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["split_by", "split_by_size", "split_by_tags", "split_module"]


def split_module(  # noqa: PLR0913 - torch.fx's public signature
    m: GraphModule,
    root_m: nn.Module | None,
    split_callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,  # noqa: FBT001, FBT002 - as above
    keep_original_node_name: bool | None = False,  # noqa: FBT001, FBT002
    keep_original_input_name: bool = True,  # noqa: FBT001, FBT002
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """Split a program into partitions, each of which becomes a submodule that the result calls.

    Partitions run in an order in which all values are there when they are used, and in which every effect happens in
    the order in which the program has it. Nodes keep their regions, notes and origins.

    Args:
        m: Not changed; parameters, buffers and submodules are shared with the result.
        root_m: Not used, as in torch.fx.
        split_callback: Called once for each call, in the order of the graph; what it returns, as text, names the
            partition.
        qualname_map: Filled with the path of each submodule that is called in the result -> its path in `m`.
        keep_original_order: Whether partitions have to run in the order of their first nodes, and attributes are read
            where they are first used. Otherwise they do so where they can.
        keep_original_node_name: Whether nodes keep their names; otherwise they are named after what they call.
        keep_original_input_name: Whether inputs of submodules are named after the values that they stand for; otherwise
            ``arg_0``, ``arg_1``, …
        partition_affix: Stands in the names of submodules, ``submod_AFFIX_0``.
        tuple_return: Whether submodules return a tuple also where they return one value.

    Returns:
        A module whose submodules are called ``submod_0``, with the state of `m` under other paths;
        `fxplug.load_original_state_dict` loads a state dict of `m` into it.

    Raises:
        PartitionError: Partitions need each other; the message names them and the nodes that are the reason.
        InvalidArgumentError: `m` is no graph module.

    Example:
        ::

            split = fxplug.split_module(module, None, lambda node: int(node.name.startswith("head")))
            split.submod_1
    """
    require_graph_module(m, "split")
    found: dict[str, list[Node]] = {}
    for node in m.graph.nodes:
        if is_call(node):
            found.setdefault(_name(split_callback(node), partition_affix, node), []).append(node)
    names, partitions = list(found), list(found.values())
    order = order_partitions(partitions, requirements(m), names)
    if keep_original_order and order != sorted(order):
        first = next(number for position, number in enumerate(order) if number != position)
        late = next(position for position, number in enumerate(order) if number != position)
        raise PartitionError(
            f"Cannot split the module in its original order: {names[late]!r} has the first node and needs "
            f"{names[first]!r}, which begins later. Leave out keep_original_order, or choose other partitions."
        )
    style = PartStyle(
        keep_node_names=bool(keep_original_node_name),
        keep_input_names=keep_original_input_name,
        late_attributes=bool(keep_original_order),
        tuples=tuple_return,
        own_attributes=False,
    )
    parts = [Part(names[number], partitions[number]) for number in order]
    if qualname_map is not None:
        for part in parts:
            for node in part.nodes:
                if node._op == "call_module":
                    qualname_map[f"{part.name}.{node._target}"] = node._target
    return split_into(m, parts, style, "split_module")


def _name(answer: object, affix: str | None, node: Node) -> str:
    text = str(answer) if affix is None else f"{affix}_{answer}"
    if not text or "." in text:
        raise InvalidArgumentError(
            f"Cannot split the module: the partition of node {node.name!r} would be called {text!r}, and a submodule "
            "cannot. Return a number, or text without dots."
        )
    return f"submod_{text}"


def split_by_tags(
    gm: GraphModule,
    tags: Sequence[str],
    return_fqn_mapping: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
    return_tuple: bool = False,  # noqa: FBT001, FBT002
) -> GraphModule | tuple[GraphModule, dict[str, str]]:
    """Split a program by tags that its calls have in ``node.meta["tag"]``; each tag becomes a submodule of that name.

    Args:
        gm: Not changed; parameters, buffers and submodules are shared with the result.
        tags: All tags, in the order in which the submodules run.
        return_fqn_mapping: Whether a mapping is returned too: path in `gm` of what a submodule holds -> its path in the
            result.
        return_tuple: Whether submodules return a tuple also where they return one value.

    Returns:
        A module with a submodule for each tag that some call has.

    Raises:
        PartitionError: A call has no tag, or a tag that is not listed, or the submodules cannot run in this order.
        InvalidArgumentError: `gm` is no graph module.

    Example:
        ::

            for node in module.graph.nodes:
                node.meta["tag"] = "head" if node.name.startswith("head") else "trunk"
            split = split_by_tags(module, ["trunk", "head"])
    """
    require_graph_module(gm, "split")
    found: dict[str, list[Node]] = {tag: [] for tag in tags}
    for node in gm.graph.nodes:
        if is_call(node):
            tag = node.meta.get("tag")
            if tag not in found:
                raise PartitionError(
                    f"Cannot split the module by tags: node {node.name!r} has the tag {tag!r}, and listed are "
                    f"{list(tags)}. Set node.meta['tag'] of every call to one of them."
                )
            found[tag].append(node)
    names = [tag for tag in found if found[tag]]
    before = requirements(gm)
    place = {node: number for number, tag in enumerate(names) for node in found[tag]}
    for node, needed in before.items():
        for used in needed:
            if place[used] > place[node]:
                raise PartitionError(
                    f"Cannot split the module by tags: {names[place[node]]!r} would run before {names[place[used]]!r}, "
                    f"and its node {node.name!r} has to run behind {used.name!r}. Tag them otherwise, or list the tags "
                    "in another order."
                )
    made = [Part(tag, found[tag]) for tag in names]
    result = split_into(gm, made, PartStyle(keep_node_names=True, tuples=return_tuple), "split_by_tags")
    if not return_fqn_mapping:
        return result
    paths = [
        (node._target, f"{part.name}.{node._target}")
        for part in made
        for node in (*part.attributes, *part.nodes)
        if node._op in PATH_OPCODES
    ]
    return result, dict(paths)


def split_by_size(
    module: GraphModule,
    parts: int | None = None,
    *,
    max_bytes: int | None = None,
    weigh: Callable[[Node], float] | None = None,
) -> GraphModule:
    """Split a program into a pipeline: submodules that run one after another, each a piece of the program.

    Args:
        module: Not changed; parameters, buffers and submodules are shared with the result.
        parts: How many submodules; the heaviest of them is as light as it can be.
        max_bytes: How many bytes of parameters and buffers a submodule may use at most; there are as few submodules as
            that allows.
        weigh: Returns what a call weighs, in the place of bytes; with `parts` alone.

    Returns:
        A module with submodules ``submod_0``, ``submod_1``, … Parameters that one of them alone uses are in it.
        Memory that several use, because they share a weight, counts in each of them.

    Raises:
        PartitionError: There are fewer calls than `parts`, or one call alone has more than `max_bytes`.
        InvalidArgumentError: Not exactly one of `parts` and `max_bytes` is given, or one is no positive number; or
            `module` is no graph module.

    Example:
        ::

            pipeline = fxplug.split_by_size(module, max_bytes=4 * 2**30)
    """
    require_graph_module(module, "split")
    _check_size(parts, max_bytes, weigh)
    loads = Loads(module, weigh)
    if max_bytes is not None:
        pieces = loads.cut_at(max_bytes)
        for piece in pieces:
            if loads.weight(piece) > max_bytes:
                raise PartitionError(
                    f"Cannot split the module into parts of {max_bytes} bytes: node {piece[0].name!r} alone uses "
                    f"{int(loads.weight(piece))}. Allow more, or split what it calls."
                )
    else:
        wanted = 1 if parts is None else parts
        if wanted > len(loads.nodes):
            raise PartitionError(
                f"Cannot split the module into {wanted} parts: it has {len(loads.nodes)} calls. Ask for fewer."
            )
        pieces = loads.cut_into(wanted)
    made = [Part(f"submod_{number}", piece) for number, piece in enumerate(pieces)]
    return split_into(module, made, PartStyle(keep_node_names=True), "split_by_size")


def _check_size(parts: object, max_bytes: object, weigh: object) -> None:
    given = [value for value in (parts, max_bytes) if value is not None]
    if len(given) != 1 or (max_bytes is not None and weigh is not None):
        raise InvalidArgumentError(
            "Cannot split the module by size: give either the number of parts, with or without weigh, or max_bytes."
        )
    if type(given[0]) is not int or given[0] < 1:
        raise InvalidArgumentError(
            f"Cannot split the module by size: {given[0]!r} is no positive whole number."
        )


def split_by(
    module: GraphModule,
    predicate: Callable[[Node], bool],
    *,
    min_block_size: int = 1,
    together: Iterable[Collection[Node]] = (),
) -> GraphModule:
    """Put all calls that fulfil a predicate into as few submodules as possible; the others stay in the graph.

    Args:
        module: Not changed; parameters, buffers and submodules are shared with the result.
        predicate: Asked once for each call, in the order of the graph.
        min_block_size: Where fewer calls than this would make a submodule, they stay in the graph.
        together: Sets of calls that come into one submodule or stay; see `fxplug.passes.group_nodes`.

    Returns:
        A module with submodules ``submod_0``, ``submod_1``, … in the order in which they run. Parameters that one of
        them alone uses are in it.

    Raises:
        PartitionError: A set of `together` holds something that is no call of this graph.
        InvalidArgumentError: `module` is no graph module.

    Example:
        ::

            split = fxplug.split_by(module, lambda node: node.op == "call_module", min_block_size=3)
    """
    require_graph_module(module, "split")
    groups = group_nodes(module, predicate, min_block_size=min_block_size, together=together)
    before = requirements(module)
    inside = {node for group in groups for node in group}
    partitions = [*groups, *([node] for node in before if node not in inside)]
    order = order_partitions(partitions, before, [f"group {number}" for number in range(len(partitions))])
    names = _free_names(module)
    made = [Part(next(names) if number < len(groups) else None, partitions[number]) for number in order]
    return split_into(module, made, PartStyle(keep_node_names=True), "split_by")


def _free_names(module: GraphModule) -> Iterator[str]:
    """Yield names for submodules that what stays in the graph does not have."""
    taken = {str(node._target).partition(".")[0] for node in module.graph.nodes if node._op in PATH_OPCODES}
    return (name for number in count() if (name := f"submod_{number}") not in taken)
