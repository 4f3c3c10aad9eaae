"""`Op`: XLA's operations as Python expressions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.builder import graph
from torch_xdist.builder.shapes import Shape, element_name, kind_of, shape_of, torch_type
from torch_xdist.builder.window_ops import WindowOps
from torch_xdist.errors import ArgumentError


def _unary(name: str) -> Callable[["Op"], "Op"]:
    def call(self: "Op") -> "Op":
        return self._make(name, self)

    call.__doc__ = f"XLA's {name}."
    return call


def _binary(name: str) -> Any:
    def call(self: "Op", rhs: "Op") -> "Op":
        return self._make(name, self, rhs)

    call.__doc__ = f"XLA's {name}."
    return call


class Op(WindowOps):
    """One operation; its methods make further ones.

    Args:
        op: what it wraps.
    """

    def __init__(self, op: graph.XlaOp) -> None:
        self.op = op

    @classmethod
    def _make(cls, name: str, *operands: "Op", builder: Any = None, **attributes: Any) -> "Op":
        return mkop(name, [x.op for x in operands], builder=builder, **attributes)

    def shape(self) -> Shape:
        """The shape of its result."""
        return Shape(shape_of(self.op.type))

    def builder(self) -> graph.XlaBuilder:
        """Where it was made."""
        return self.op.builder

    def build(self, name: str) -> graph.XlaComputation:
        """The computation whose result this is."""
        return graph.built(name, self.op)

    __add__ = _binary("Add")
    __sub__ = _binary("Sub")
    __mul__ = _binary("Mul")
    __matmul__ = _binary("Dot")
    __truediv__ = _binary("Div")
    __pow__ = _binary("Pow")
    __mod__ = _binary("Rem")
    __and__ = _binary("And")
    __or__ = _binary("Or")
    __xor__ = _binary("Xor")
    __eq__ = _binary("Eq")
    __ne__ = _binary("Ne")
    __le__ = _binary("Le")
    __lt__ = _binary("Lt")
    __ge__ = _binary("Ge")
    __gt__ = _binary("Gt")
    __lshift__ = _binary("ShiftLeft")
    __rshift__ = _binary("ShiftRight")
    __neg__ = _unary("Neg")
    __not__ = _unary("Not")
    __invert__ = __not__
    # Operations are compared by what they compute, so they are told apart by being themselves.
    __hash__ = object.__hash__
    acos = _unary("Acos")
    asin = _unary("Asin")
    atan = _unary("Atan")
    ceil = _unary("Ceil")
    cos = _unary("Cos")
    cosh = _unary("Cosh")
    erf = _unary("Erf")
    erfc = _unary("Erfc")
    erfinf = _unary("ErfInv")
    exp = _unary("Exp")
    expm1 = _unary("Expm1")
    floor = _unary("Floor")
    log = _unary("Log")
    log1p = _unary("Log1p")
    sqrt = _unary("Sqrt")
    real = _unary("Real")
    imag = _unary("Imag")
    clz = _unary("Clz")
    conj = _unary("Conj")
    rsqrt = _unary("Rsqrt")
    sin = _unary("Sin")
    sinh = _unary("Sinh")
    tan = _unary("Tan")
    tanh = _unary("Tanh")

    def atan2(self, other: "Op") -> "Op":
        """The angle of the point (other, self)."""
        return self._make("Atan2", self, other)

    def max(self, other: "Op") -> "Op":
        """The larger of both, element by element."""
        return self._make("Max", self, other)

    def min(self, other: "Op") -> "Op":
        """The smaller of both, element by element."""
        return self._make("Min", self, other)

    def reshape(
        self,
        sizes: Sequence[int],
        dimensions: Sequence[int] | None = None,
        inferred_dimension: int | None = None,
    ) -> "Op":
        """Other sizes for the same elements; `dimensions` are permuted before."""
        return self._make("Reshape", self, sizes=sizes, dimensions=dimensions)

    def dynamic_reshape(self, sizes: Any) -> "Op":
        """Refused: sizes are known when a program is made."""
        return self._make("DynamicReshape", self, sizes=sizes)

    def broadcast(self, sizes: Sequence[int]) -> "Op":
        """Further dims in front."""
        return self._make("Broadcast", self, sizes=sizes)

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> "Op":
        """An array of these sizes; `dimensions` say which of them each dim becomes."""
        return self._make("BroadcastInDim", self, sizes=sizes, dimensions=dimensions)

    def slice(
        self,
        start_indices: Sequence[int],
        limit_indices: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> "Op":
        """A part of each dim."""
        steps = [1] * len(start_indices) if strides is None else strides
        bounds = {"start_indices": start_indices, "limit_indices": limit_indices}
        return self._make("Slice", self, **bounds, strides=steps)

    def slice_in_dim(self, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> "Op":
        """A part of one dim."""
        bounds = {"start_index": start_index, "limit_index": limit_index}
        return self._make("SliceInDim", self, **bounds, dimno=dimno, stride=stride)

    def dynamic_slice(self, start_indices: Sequence["Op"], slice_sizes: Sequence[int]) -> "Op":
        """A part of each dim that starts where a scalar says."""
        return self._make("DynamicSlice", self, *start_indices, slice_sizes=slice_sizes)

    def dynamic_update_slice(self, update: "Op", start_indices: Sequence["Op"]) -> "Op":
        """The array with another part, which starts where scalars say."""
        return self._make("DynamicUpdateSlice", self, update, *start_indices)

    def cast(self, to_type: str) -> "Op":
        """The same numbers in another type."""
        return self._make("Convert", self, to_type=to_type)

    def bitcast(self, to_type: str) -> "Op":
        """The same bits in another type."""
        return self._make("BitcastConvert", self, to_type=to_type)

    def pad(self, value: "Op", config: Sequence[Sequence[int]]) -> "Op":
        """Elements around and between: (before, after, between) for each dim."""
        return self._make("Pad", self, value, config=config)

    def select(self, true_value: "Op", false_value: "Op") -> "Op":
        """Elements of one where this is true, of the other elsewhere."""
        return self._make("Select", self, true_value, false_value)

    def transpose(self, permutation: Sequence[int]) -> "Op":
        """The dims in another order."""
        return self._make("Transpose", self, permutation=permutation)

    def clamp(self, min_value: "Op", max_value: "Op") -> "Op":
        """Not less than one and not more than the other."""
        return self._make("Clamp", self, min_value, max_value)

    def get_tuple_element(self, index: int) -> "Op":
        """One part of a tuple."""
        return self._make("GetTupleElement", self, index=index)

    def conditional(
        self,
        true_operand: "Op",
        false_operand: "Op",
        true_computation: Any,
        false_computation: Any,
    ) -> "Op":
        """One of two computations, each of its own operand, by a boolean scalar."""
        return self._make(
            "Conditional",
            self,
            true_operand,
            false_operand,
            true_computation=Op.make_computation("CondTrue", true_computation, [true_operand]),
            false_computation=Op.make_computation("CondFalse", false_computation, [false_operand]),
        )

    def mkconditional(
        self, ops: Sequence["Op"], true_fn: Any, false_fn: Any, **kwargs: Any
    ) -> "Op":
        """One of two functions of the same operands, by a boolean scalar."""
        operands = Op.tuple(ops)
        return self.conditional(operands, operands, true_fn, false_fn)

    def while_loop(self, condition_computation: Any, body_computation: Any) -> "Op":
        """The body again and again while the condition holds; this is the first state."""
        return self._make(
            "While",
            self,
            condition_computation=Op.make_computation("Condition", condition_computation, [self]),
            body_computation=Op.make_computation("Body", body_computation, [self]),
        )

    @classmethod
    def mkwhile(cls, ops: Sequence["Op"], condition_fn: Any, body_fn: Any, **kwargs: Any) -> "Op":
        """`while_loop` whose state are several operations."""
        return Op.tuple(ops).while_loop(condition_fn, body_fn)

    @classmethod
    def wrap_function(cls, fn: Callable[..., Any]) -> Callable[..., "Op"]:
        """A function that takes the parts of a tuple, and may return several operations."""

        def wrapper(*args: Any, **kwargs: Any) -> Op:
            if len(args) == 1 and args[0].shape().is_tuple():
                whole = args[0]
                args = tuple(map(whole.get_tuple_element, range(whole.shape().tuple_size())))
            result = fn(*args, **kwargs)
            return Op.tuple(result) if isinstance(result, list | tuple) else result

        return wrapper

    @classmethod
    def make_computation(
        cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any
    ) -> Any:
        """The computation of a function of operations like these; a computation stays as it is."""
        if not callable(computation):
            return computation
        shapes = [arg if isinstance(arg, Shape) else arg.shape() for arg in args_or_shapes]
        return create_computation(name, Op.wrap_function(computation), shapes, **kwargs)

    def get_dimension_size(self, dimension: int) -> "Op":
        """The size of one dim, as an s32."""
        return self._make("GetDimensionSize", self, dimension=dimension)

    def set_dimension_size(self, size: "Op", dimension: int) -> "Op":
        """Refused: sizes are known when a program is made."""
        return self._make("SetDimensionSize", self, size, dimension=dimension)

    def rev(self, dimensions: Sequence[int]) -> "Op":
        """These dims from behind."""
        return self._make("Rev", self, dimensions=dimensions)

    def scalar_like(self, value: Any) -> "Op":
        """One value everywhere, in this shape and type."""
        shape = self.shape()
        return Op.scalar(self.builder(), value, dtype=shape.dtype).broadcast(shape.sizes)

    def zeros_like(self) -> "Op":
        """Zeros in this shape and type."""
        return self.scalar_like(0)

    def ones_like(self) -> "Op":
        """Ones in this shape and type."""
        return self.scalar_like(1)

    @classmethod
    def tuple(cls, ops: Sequence["Op"], builder: Any = None) -> "Op":
        """Several results as one."""
        return cls._make("Tuple", *ops, builder=builder)

    @classmethod
    def concat_in_dim(cls, ops: Sequence["Op"], dimension: int, builder: Any = None) -> "Op":
        """Arrays one after another along a dim."""
        return cls._make("ConcatInDim", *ops, builder=builder, dimension=dimension)

    @classmethod
    def call(cls, computation: Any, ops: Sequence["Op"], builder: Any = None) -> "Op":
        """A computation of these operands."""
        made = Op.make_computation("Call", computation, ops)
        return cls._make("Call", *ops, builder=builder, computation=made)

    @classmethod
    def constant(cls, builder: graph.XlaBuilder, value: torch.Tensor) -> "Op":
        """The values of a tensor, as part of the computation."""
        return mkleaf("Constant", builder, value=value)

    @classmethod
    def scalar(cls, builder: graph.XlaBuilder, value: Any, dtype: str | None = None) -> "Op":
        """One number."""
        return cls.constant(builder, torch.tensor(value, dtype=cls.to_torch_type(dtype)))

    @classmethod
    def zero(cls, builder: graph.XlaBuilder, dtype: str | None = None) -> "Op":
        """The number 0."""
        return cls.scalar(builder, 0, dtype=dtype)

    @classmethod
    def one(cls, builder: graph.XlaBuilder, dtype: str | None = None) -> "Op":
        """The number 1."""
        return cls.scalar(builder, 1, dtype=dtype)

    @classmethod
    def iota(cls, builder: graph.XlaBuilder, shape: Shape, iota_dimension: int) -> "Op":
        """0, 1, 2, ... along one dim."""
        return mkleaf("Iota", builder, shape=shape.shape, iota_dimension=iota_dimension)

    @classmethod
    def sort(
        cls,
        ops: Sequence["Op"],
        comparator: Any,
        dimension: int | None = None,
        is_stable: bool | None = None,
    ) -> "Op":
        """Arrays in the order of the first one; the comparator is `a < b` or `a > b` of it."""
        scalars = [op.shape().as_scalar() for op in ops[:1] for _ in range(2)]
        made = Op.make_computation("Sort", comparator, scalars)
        return cls._make("Sort", *ops, comparator=made, dimension=dimension, is_stable=is_stable)

    @classmethod
    def map(
        cls,
        ops: Sequence["Op"],
        computation: Any,
        dimensions: Sequence[int],
        static_operands: Sequence["Op"] = (),
        builder: Any = None,
    ) -> "Op":
        """A computation of scalars, element by element."""
        scalars = [op.shape().as_scalar() for op in ops]
        made = Op.make_computation("Map", computation, scalars)
        return cls._make(
            "Map",
            *ops,
            builder=builder,
            computation=made,
            dimensions=dimensions,
            static_operands=static_operands,
        )

    @classmethod
    def to_torch_type(cls, dtype: str | None) -> torch.dtype:
        """The torch dtype of "s32" and the like; float32 for None."""
        return torch_type(dtype) if dtype else torch.float32

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """XLA's name of a torch dtype."""
        return element_name(dtype)


def mkop(name: str, ops: Sequence[graph.XlaOp], **kwargs: Any) -> Op:
    """An operation by XLA's name, of what `Op`s wrap."""
    builder = kwargs.get("builder")
    if builder is None and not ops:
        raise ArgumentError(
            f"mkop: {name} has no operands, so it is in no builder; give builder= or use mkleaf"
        )
    return Op(graph.operation(builder or ops[0].builder, name, ops, kwargs))


def mkleaf(name: str, builder: graph.XlaBuilder, **kwargs: Any) -> Op:
    """An operation without operands."""
    return Op(graph.operation(builder, name, (), kwargs))


def create_computation(
    name: str, fn: Callable[..., Any], shapes: Sequence[Shape], **kwargs: Any
) -> graph.XlaComputation:
    """The computation of a function of operations of these shapes, which returns one."""
    builder = graph.XlaBuilder(name)
    params = [mkparam(builder, number, shape) for number, shape in enumerate(shapes)]
    return fn(*params, **kwargs).build(name)  # type: ignore[no-any-return]


def mkparam(builder: graph.XlaBuilder, param_no: int, shape: Shape) -> Op:
    """A parameter of the computation."""
    return Op(graph.parameter(builder, param_no, kind_of(shape.shape)))
