"""Operations of `Op` over windows, over dims and by indices."""

from collections.abc import Sequence
from typing import Any

Padding = str | Sequence[Sequence[int]]


class WindowOps:
    """Convolutions, reductions, pools, gathers and scatters. `Op` adds the rest."""

    op: Any

    @classmethod
    def _make(cls, name: str, *operands: Any, builder: Any = None, **attributes: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def make_computation(
        cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any
    ) -> Any:
        """`Op.make_computation`."""
        raise NotImplementedError

    def shape(self) -> Any:
        """`Op.shape`."""
        raise NotImplementedError

    def _conv(self, name: str, given: dict[str, Any]) -> Any:
        """A convolution by the arguments of the method that asks for it."""
        attributes = {n: v for n, v in given.items() if n not in ("self", "kernel")}
        return self._make(name, self, given["kernel"], **attributes)

    def _of_scalars(self, name: str, computation: Any) -> Any:
        """The computation of a function of two elements."""
        scalar = self.shape().as_scalar()
        return self.make_computation(name, computation, (scalar, scalar))

    def conv(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        padding: Padding = "valid",
        precision_config: Any = None,
    ) -> Any:
        """A convolution of [batch, feature, ...] by [out, in, ...]."""
        return self._conv("Conv", locals())

    def conv_with_general_padding(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Any:
        """`conv` with (before, after) of each spatial dim."""
        return self._conv("ConvWithGeneralPadding", locals())

    def conv_with_general_dimensions(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        padding: Padding = "valid",
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Any:
        """`conv` with the dims in any order."""
        return self._conv("ConvWithGeneralDimensions", locals())

    def conv_general(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Any:
        """`conv` with any padding, the dims in any order."""
        return self._conv("ConvGeneral", locals())

    def conv_general_dilated(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Padding,
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: Any = None,
    ) -> Any:
        """`conv_general` with holes in the input and in the kernel."""
        return self._conv("ConvGeneralDilated", locals())

    def gather(
        self,
        start_indices: Any,
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
    ) -> Any:
        """Slices that start at the indices: of size 1 along the collapsed dims, else of all."""
        return self._make(
            "Gather",
            self,
            start_indices,
            offset_dims=offset_dims,
            collapsed_slice_dims=collapsed_slice_dims,
            start_index_map=start_index_map,
            index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted,
        )

    def scatter(
        self,
        scatter_indices: Any,
        updates: Any,
        computation: Any,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        indices_are_sorted: bool | None = None,
        unique_indices: bool | None = None,
    ) -> Any:
        """The array with updates at the indices.

        The computation is the sum, product, minimum or maximum of its parameters, or the second.
        """
        return self._make(
            "Scatter",
            self,
            scatter_indices,
            updates,
            computation=self._of_scalars("Scatter", computation),
            update_window_dims=update_window_dims,
            inserted_window_dims=inserted_window_dims,
            scatter_dims_to_operand_dims=scatter_dims_to_operand_dims,
            index_vector_dim=index_vector_dim,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
        )

    def select_and_scatter(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: Any,
        scatter_computation: Any,
        padding: Padding = "valid",
    ) -> Any:
        """Each element of `source`, where its window's chosen element stands."""
        return self._make(
            "SelectAndScatter",
            self,
            source,
            init_value,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            select_computation=self._of_scalars("Select", select_computation),
            scatter_computation=self._of_scalars("Scatter", scatter_computation),
            padding=padding,
        )

    def select_and_scatter_with_general_padding(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: Any,
        scatter_computation: Any,
        padding: Padding,
    ) -> Any:
        """`select_and_scatter` with (before, after) of each dim."""
        return self.select_and_scatter(
            source,
            init_value,
            window_dimensions,
            window_strides,
            select_computation,
            scatter_computation,
            padding,
        )

    def max_pool(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        batch_dimension: int,
        feature_dimension: int,
        spatial_dimensions: Sequence[int],
        padding: Padding = "valid",
    ) -> Any:
        """The largest element of each window."""
        return self._make(
            "MaxPool",
            self,
            kernel_size=kernel_size,
            stride=stride,
            batch_dimension=batch_dimension,
            feature_dimension=feature_dimension,
            spatial_dimensions=spatial_dimensions,
            padding=padding,
        )

    def reduce(self, init_value: Any, computation: Any, dimensions: Sequence[int]) -> Any:
        """What a computation of two elements makes of these dims."""
        made = self._of_scalars("Reduce", computation)
        return self._make("Reduce", self, init_value, computation=made, dimensions=dimensions)

    def reduce_all(self, init_value: Any, computation: Any) -> Any:
        """What a computation of two elements makes of all."""
        made = self._of_scalars("ReduceAll", computation)
        return self._make("ReduceAll", self, init_value, computation=made)

    def reduce_window(
        self,
        init_value: Any,
        computation: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Padding = "valid",
    ) -> Any:
        """What a computation of two elements makes of each window."""
        return self._make(
            "ReduceWindow",
            self,
            init_value,
            computation=self._of_scalars("ReduceWindow", computation),
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
        )

    def triangualr_solve(
        self,
        b: Any,
        left_side: bool | None = None,
        lower: bool | None = None,
        unit_diagonal: bool | None = None,
        transpose_a: bool | None = None,
    ) -> Any:
        """x of `self @ x = b`; the name is torch_xla's."""
        return self._make(
            "TriangularSolve",
            self,
            b,
            left_side=left_side,
            lower=lower,
            unit_diagonal=unit_diagonal,
            transpose_a=transpose_a,
        )
