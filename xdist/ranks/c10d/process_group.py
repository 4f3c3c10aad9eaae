"""A process group of the xla device.

Collectives on device tensors are rows of the trace, like those of `collective_ops`: the call
returns at once, and async works are complete from the start. CPU tensors, point-to-point messages
and collectives whose sizes differ between ranks go from host to host at once.
"""
# torch calls each method in one of the ways its type stubs list, so they are not all here.
# mypy: disable-error-code="override,assignment"

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch
import torch.distributed as dist

from torch_xdist import world
from torch_xdist.collectives import inside
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.ranks import collective_ops
from torch_xdist.ranks.c10d.reductions import Reduction, reduction
from torch_xdist.ranks.c10d.work import Receiving, done, finished, on_device
from torch_xdist.ranks.tensor_messages import fill, received, sent, shared


class ProcessGroupXla(dist.ProcessGroup):
    """The ranks of one torch.distributed group.

    Args:
        prefix_store, timeout: kept, and not needed.
        rank, size: this member's place in the group, and how many there are.
        ranks: the members, as ranks of the world, in the order of the group; default all.
        name: the same on every member.
    """

    def __init__(
        self,
        prefix_store: Any,
        rank: int,
        size: int,
        timeout: Any,
        *,
        ranks: Sequence[int] = (),
        name: str = "c10d/world",
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.prefix_store, self.timeout = prefix_store, timeout
        self.ranks = tuple(ranks) or tuple(range(size))
        self.member = rank
        everybody = self.ranks == tuple(range(world.world_size()))
        self._groups = None if everybody else (self.ranks,)
        self._label = name
        self._name = self._desc = ""

    # torch keeps these in its own backends only.
    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """What torch.distributed calls the group."""
        return self._name

    @property
    def group_desc(self) -> str:  # type: ignore[override]
        """What the group is for, as its maker said."""
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:  # type: ignore[override]
        return [torch.device("xla"), torch.device("cpu")]

    def getBackendName(self) -> str:
        """The name `init_process_group` knows."""
        return "xla"

    # A group of torch's own asks a backend per device; from 2.15 on callers ask for that backend.
    supports_coalescing = supports_splitting = False

    def _get_backend(self, device: torch.device) -> "ProcessGroupXla":
        """What does the work on a device: the group itself."""
        return self

    get_backend = _get_backend

    # Rows of the trace

    def _record(
        self,
        name: str,
        function: Callable[..., Any],
        tensors: Sequence[torch.Tensor],
        key: Hashable = (),
    ) -> list[XlaTensor]:
        return collective_ops.record(f"c10d.{name}", function, tensors, (self._groups, key))

    def _shared(self, name: str, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        return shared(f"{self._label}.{name}", self.ranks, tensors)

    def allreduce(self, tensors: list[torch.Tensor], all_reduce_options: Any = None) -> dist.Work:
        """Reduce in place."""
        return self.allreduce_coalesced(tensors, all_reduce_options)

    def allreduce_coalesced(self, *args: Any) -> dist.Work:
        """Reduce several tensors in place, as one row: (tensors, opts=None)."""
        tensors, opts = (*args, None)[:2]
        return done(tensors, self._reduced("all_reduce", tensors, opts))

    def _reduced(
        self, name: str, tensors: Sequence[torch.Tensor], opts: Any
    ) -> Sequence[torch.Tensor]:
        op = self._reduction(name, opts)
        if not on_device(tensors):
            return [op.of_tensors(values) for values in zip(*self._shared(name, tensors))]

        def reduce(*arrays: jax.Array) -> list[jax.Array]:
            brought = [op.before(x) for x in arrays]
            return [op.after(x) for x in inside.all_reduce(brought, op.name, self._groups)]

        return self._record(name, reduce, tensors, op)

    def _reduction(self, name: str, opts: Any) -> Reduction:
        return reduction(dist.ReduceOp.SUM if opts is None else opts, len(self.ranks), of=name)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce onto the root; the other members keep their values."""
        results = self._reduced("reduce", tensors, opts)
        if self.member == opts.rootRank:
            return done(tensors, results)
        return finished(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Write the root's values into every member's tensors."""
        root = self.ranks[opts.rootRank]
        if not on_device(tensors):
            brought = tensors if self.member == opts.rootRank else []
            return done(tensors, self._shared("broadcast", brought)[opts.rootRank])

        def broadcast(*arrays: jax.Array) -> list[jax.Array]:
            return [inside.broadcast(x, root, self._groups) for x in arrays]

        return done(tensors, self._record("broadcast", broadcast, tensors, root))

    def _gathered(self, name: str, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not on_device(tensors):
            lists = self._shared(name, tensors)
            return [torch.stack(values) for values in zip(*lists)]

        def gather(*arrays: jax.Array) -> list[jax.Array]:
            return [inside.all_gather_stacked(x, self._groups) for x in arrays]

        return self._record(name, gather, tensors)

    def allgather(
        self,
        output_tensors_list: list[list[torch.Tensor]],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Member m's input into output m; the members' shapes may differ."""
        for outputs, value in zip(output_tensors_list, input_tensors):
            self._expect(outputs, "all_gather")
            if any(output.shape != value.shape for output in outputs):
                fill(outputs, [values[0] for values in self._shared("all_gather", [value])])
            else:
                fill(outputs, self._gathered("all_gather", [value])[0].unbind(0))
        return finished([output for outputs in output_tensors_list for output in outputs])

    def allgather_coalesced(
        self,
        output_tensors_list: list[list[torch.Tensor]],
        input_tensors: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Member m's inputs into output_tensors_list[m]."""
        self._expect(output_tensors_list, "all_gather_coalesced")
        gathered = self._gathered("all_gather", input_tensors)
        for outputs, stacked in zip(zip(*output_tensors_list), gathered):
            fill(outputs, stacked.unbind(0))
        return finished([output for outputs in output_tensors_list for output in outputs])

    def all_gather_single(
        self, output: torch.Tensor, value: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """Every member's input, joined or stacked as `output` is shaped."""
        return self.all_gather_single_coalesced([output], [value], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Several of them, as one row."""
        return done(outputs, self._gathered("all_gather", inputs))

    def gather(
        self,
        output_tensors_list: list[list[torch.Tensor]],
        input_tensor_list: list[torch.Tensor],
        opts: Any,
    ) -> dist.Work:
        """Member m's input into output m on the root."""
        stacked = self._gathered("gather", input_tensor_list)
        if self.member != opts.rootRank:
            return finished(input_tensor_list)
        for outputs, rows in zip(output_tensors_list, stacked):
            self._expect(outputs, "gather")
            fill(outputs, rows.unbind(0))
        return finished([output for outputs in output_tensors_list for output in outputs])

    def scatter(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensors_list: list[list[torch.Tensor]],
        opts: Any,
    ) -> dist.Work:
        """The root's input m to member m."""
        root = opts.rootRank
        for index, output in enumerate(output_tensor_list):
            inputs = input_tensors_list[index] if self.member == root else []
            if self.member == root:
                self._expect(inputs, "scatter")
            if not on_device(output_tensor_list):
                fill([output], [self._shared("scatter", inputs)[root][self.member]])
                continue
            if inputs:
                rows = torch.stack(inputs)
            else:
                rows = torch.zeros(
                    (len(self.ranks), *output.shape), dtype=output.dtype, device="xla"
                )
            fill([output], [self._exchanged("scatter", rows)[root]])
        return finished(output_tensor_list)

    def _exchanged(self, name: str, rows: torch.Tensor) -> XlaTensor:
        """Row m of `rows` [members, ...] to member m; what arrived, by member."""

        def exchange(x: jax.Array) -> jax.Array:
            shape = x.shape
            flat = x.reshape(shape[0], -1) if x.size else x.reshape(shape[0], 0)
            return inside.all_to_all(flat, 0, 0, shape[0], self._groups).reshape(shape)

        return self._record(name, exchange, [rows])[0]

    def reduce_scatter(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors_list: list[list[torch.Tensor]],
        opts: Any = None,
    ) -> dist.Work:
        """Member m gets the reduction of every member's input m; the inputs may differ in shape."""
        for output, inputs in zip(output_tensors, input_tensors_list):
            self._expect(inputs, "reduce_scatter")
            if len({value.shape for value in inputs}) > 1:
                reduced = self._reduced("reduce_scatter", inputs, opts)[self.member]
            else:
                reduced = self._scattered([torch.stack(inputs)], opts)[0]
            fill([output], [reduced])
        return finished(output_tensors)

    def reduce_scatter_coalesced(
        self,
        output_tensors: list[torch.Tensor],
        input_tensors_list: list[list[torch.Tensor]],
        opts: Any = None,
    ) -> dist.Work:
        """`reduce_scatter` of inputs of equal shapes, as one row."""
        for inputs in input_tensors_list:
            self._expect(inputs, "reduce_scatter_coalesced")
        stacked = [torch.stack(inputs) for inputs in input_tensors_list]
        return done(output_tensors, self._scattered(stacked, opts))

    def reduce_scatter_single(
        self, output: torch.Tensor, value: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """This member's equal part, along dim 0, of the reduction of every member's input."""
        return self.reduce_scatter_single_coalesced([output], [value], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Several of them, as one row."""
        return done(outputs, self._scattered(inputs, opts))

    def _scattered(self, inputs: Sequence[torch.Tensor], opts: Any) -> Sequence[torch.Tensor]:
        if not on_device(inputs):
            whole = self._reduced("reduce_scatter", inputs, opts)
            return [value.chunk(len(self.ranks))[self.member] for value in whole]
        op = self._reduction("reduce_scatter", opts)

        def scatter(*arrays: jax.Array) -> list[jax.Array]:
            brought = [op.before(x) for x in arrays]
            groups = self._groups
            shards = [inside.reduce_scatter(x, op.name, 0, None, groups) for x in brought]
            return [op.after(x) for x in shards]

        return self._record("reduce_scatter", scatter, inputs, op)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Slice m of `input`, along dim 0, to member m; sizes of slices may differ."""
        count = len(self.ranks)
        if not output_split_sizes and not input_split_sizes and on_device([input]):
            split = input.reshape(count, input.shape[0] // count, *input.shape[1:])
            return done([output], [self._exchanged("all_to_all", split)])
        pieces = list(input.split(list(input_split_sizes) or input.shape[0] // count))
        targets = list(output.split(list(output_split_sizes) or output.shape[0] // count))
        self._all_to_all_uneven(targets, pieces)
        return finished([output])

    def alltoall(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensor_list: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Input m to member m, into its output of this member; shapes may differ.

        Whether the members' shapes are equal is not known here, so this goes over the host.
        """
        self._all_to_all_uneven(output_tensor_list, input_tensor_list)
        return finished(output_tensor_list)

    def _all_to_all_uneven(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        self._expect(inputs, "all_to_all")
        subject = f"{self._label}.all_to_all"
        for rank, value in zip(self.ranks, inputs):
            sent(rank, subject, [value])
        fill(outputs, [received(rank, subject)[1][0] for rank in self.ranks])

    # From host to host

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until all members have come here, and run the collectives that are pending."""
        shared(f"{self._label}.barrier", self.ranks, [])
        return finished([])

    def send(self, tensors: list[torch.Tensor], dst_rank: int, tag: int = 0) -> dist.Work:
        """Send to member `dst_rank`; does not wait for its recv."""
        sent(self.ranks[dst_rank], f"{self._label}.p2p.{tag}", tensors)
        return finished(tensors)

    def recv(self, out_tensors: list[torch.Tensor], src_rank: int, tag: int = 0) -> dist.Work:
        """Receive from member `src_rank` when the work is waited for."""
        subject = f"{self._label}.p2p.{tag}"
        return Receiving(out_tensors, self.ranks, self.ranks[src_rank], subject)

    def recv_anysource(self, *args: Any) -> dist.Work:
        """Receive from whichever member sent first: (tensors, tag=0)."""
        tensors, tag = (*args, 0)[:2]
        return Receiving(tensors, self.ranks, None, f"{self._label}.p2p.{tag}")

    def _start_coalescing(self, device: torch.device) -> None:
        """What follows is one row each in the same program, so there is nothing to collect."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return finished([])

    def Options(self, *args: Any) -> Any:
        """No options, as in torch_xla."""
        raise NotImplementedError(
            "ProcessGroupXla.Options: groups of the xla backend have no options; leave pg_options"
            " out"
        )

    def _expect(self, tensors: Sequence[Any], name: str) -> None:
        if len(tensors) != len(self.ranks):
            raise ValueError(
                f"{name}: the list has {len(tensors)} tensors, and the group {len(self.ranks)} "
                "ranks; give one tensor per rank"
            )

    # The names older and newer releases of torch use for the same.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
