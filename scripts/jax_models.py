"""The models of tests/large_models.py written by hand in JAX, as a user of JAX would.

Parameters come by their names in torch and stay float32; products are in bfloat16, statistics,
softmax and loss in float32. Images are [n, h, w, c], as JAX's users have them. One update is one
program, parameters and the optimizer's state donated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from large_models import Made, Measured

HALF = jnp.bfloat16
Params = dict[str, jax.Array]


def linear(p: Params, name: str, x: jax.Array) -> jax.Array:
    """[..., i] to [..., o] in bfloat16; weights as torch has them, [o, i]."""
    y = x.astype(HALF) @ p[f"{name}.weight"].astype(HALF).T
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias.astype(HALF)


def layer_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    y = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return y * p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(p: Params, block: str, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    b, t, d = x.shape
    split = linear(p, f"{block}qkv", x).reshape(b, t, 3, heads, d // heads)
    q, k, v = split[:, :, 0], split[:, :, 1], split[:, :, 2]
    # cuDNN's on a GPU; the other way on a CPU.
    way = "cudnn" if jax.default_backend() == "gpu" else "xla"
    named = {"is_causal": causal, "implementation": way}
    if t % 2 and way == "cudnn":
        # JAX has no gradient of cuDNN's for an odd length: one more, which is passed over.
        q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
        lengths = jnp.full(b, t, jnp.int32)
        named |= {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    y = jax.nn.dot_product_attention(q, k, v, **named)[:, :t]
    return linear(p, f"{block}out", y.reshape(b, t, d))


def perceptron(p: Params, block: str, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(linear(p, f"{block}up", x), approximate=False)
    return linear(p, f"{block}down", hidden)


def _layers(p: Params) -> int:
    return 1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))


def _pre_norm(p: Params, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    for i in range(_layers(p)):
        block = f"blocks.{i}."
        x = x + attention(p, block, layer_norm(p, f"{block}norm1", x), heads, causal)
        x = x + perceptron(p, block, layer_norm(p, f"{block}norm2", x))
    return layer_norm(p, "norm", x)


def gpt2(p: Params, tokens: jax.Array, heads: int) -> jax.Array:
    x = p["tokens.weight"][tokens] + p["places.weight"][: tokens.shape[1]]
    x = _pre_norm(p, x.astype(jnp.float32), heads, True)
    return x.astype(HALF) @ p["tokens.weight"].astype(HALF).T


def vit_b(p: Params, images: jax.Array, heads: int) -> jax.Array:
    x = convolution(p, "patches", images, 16, "VALID") + p["patches.bias"].astype(HALF)
    x = x.reshape(x.shape[0], -1, x.shape[-1]).astype(jnp.float32)
    first = jnp.broadcast_to(p["first"], (x.shape[0], 1, x.shape[-1]))
    x = jnp.concatenate([first, x], 1) + p["places"]
    return linear(p, "head", _pre_norm(p, x, heads, False)[:, 0])


def bert_large(p: Params, tokens: jax.Array, heads: int) -> jax.Array:
    x = p["tokens.weight"][tokens] + p["places.weight"][: tokens.shape[1]] + p["kinds.weight"][0]
    x = layer_norm(p, "norm", x)
    for i in range(_layers(p)):
        block = f"blocks.{i}."
        x = layer_norm(p, f"{block}norm1", x + attention(p, block, x, heads, False))
        x = layer_norm(p, f"{block}norm2", x + perceptron(p, block, x))
    x = layer_norm(p, "last_norm", jax.nn.gelu(linear(p, "last", x), approximate=False))
    return x.astype(HALF) @ p["tokens.weight"].astype(HALF).T + p["head.bias"].astype(HALF)


def convolution(p: Params, name: str, x: jax.Array, stride: int, padding: Any) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x.astype(HALF),
        p[f"{name}.weight"].astype(HALF),
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
    )


def batch_norm(p: Params, name: str, x: jax.Array) -> jax.Array:
    """In training; the statistics of this batch are left in `p`, where `step_of` finds them."""
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.square(wide).mean((0, 1, 2)) - jnp.square(mean)
    count = wide.size // wide.shape[-1]
    p[f"{name}.running_mean"], p[f"{name}.running_var"] = mean, variance * (count / (count - 1))
    scale = p[f"{name}.weight"] * jax.lax.rsqrt(variance + 1e-5)
    return (wide * scale + (p[f"{name}.bias"] - mean * scale)).astype(HALF)


def resnet50(p: Params, images: jax.Array, heads: int) -> jax.Array:
    same = ((1, 1), (1, 1))
    x = jax.nn.relu(batch_norm(p, "norm", convolution(p, "conv", images, 2, ((3, 3), (3, 3)))))
    # A constant of the host, by which JAX knows a maximum, which has a gradient.
    low = np.array(-np.inf, x.dtype)
    over = ((0, 0), *same, (0, 0))
    x = jax.lax.reduce_window(x, low, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), over)
    for i in range(_layers(p)):
        block = f"blocks.{i}."
        widens = f"{block}shortcut.0.weight" in p
        stride = 2 if i and widens else 1
        y = jax.nn.relu(
            batch_norm(p, f"{block}norm1", convolution(p, f"{block}conv1", x, 1, "VALID"))
        )
        y = convolution(p, f"{block}conv2", y, stride, same)
        y = jax.nn.relu(batch_norm(p, f"{block}norm2", y))
        y = batch_norm(p, f"{block}norm3", convolution(p, f"{block}conv3", y, 1, "VALID"))
        if widens:
            x = convolution(p, f"{block}shortcut.0", x, stride, "VALID")
            x = batch_norm(p, f"{block}shortcut.1", x)
        x = jax.nn.relu(y + x)
    return linear(p, "head", x.astype(jnp.float32).mean((1, 2)))


FORWARD = {"gpt2": gpt2, "resnet50": resnet50, "vit_b": vit_b, "bert_large": bert_large}
LR, DECAY, BETAS, EPS = 1e-4, 0.01, (0.9, 0.999), 1e-8


def program_of(name: str, measured: Measured, made: Made) -> tuple[Any, tuple[Any, ...]]:
    """A step of AdamW as a jitted function, and its first arguments: state, inputs, target."""
    model, inputs, target = made
    params = {n: jnp.asarray(t.detach().numpy()) for n, t in model.named_parameters()}
    running = {n: jnp.asarray(t.numpy()) for n, t in model.named_buffers() if t.is_floating_point()}
    if inputs.dim() == 4:
        inputs = inputs.permute(0, 2, 3, 1)
    x, wanted = jnp.asarray(inputs.numpy()), jnp.asarray(target.numpy())

    def loss_of(p: Params, x: jax.Array, wanted: jax.Array) -> tuple[jax.Array, Params]:
        with_statistics = dict(p)
        logits = FORWARD[name](with_statistics, x, measured.heads).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, wanted[..., None], -1)[..., 0]
        loss = (jax.nn.logsumexp(logits, -1) - chosen).mean()
        return loss, {n: with_statistics[n] for n in running}

    def update(state: Any, x: jax.Array, wanted: jax.Array) -> Any:
        p, m, v, count, seen = state
        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(p, x, wanted)
        seen = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, seen, new)
        count = count + 1
        m = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, m, grads)
        v = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, v, grads)
        scale = jnp.sqrt(1 - BETAS[1] ** count) / (1 - BETAS[0] ** count)

        def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            whole = EPS * jnp.sqrt(1 - BETAS[1] ** count)
            return (p * (1 - LR * DECAY) - LR * scale * m / (jnp.sqrt(v) + whole)).astype(p.dtype)

        return (jax.tree.map(moved, p, m, v), m, v, count, seen), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    squares = jax.tree.map(jnp.zeros_like, params)
    state: Any = (params, zeros, squares, jnp.float32(0), running)
    return jax.jit(update, donate_argnums=0), (state, x, wanted)


def step_of(
    name: str, measured: Measured, made: Made
) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    """What launches one step of AdamW and returns its loss, and what reads that."""
    compiled, (state, x, wanted) = program_of(name, measured, made)

    def step() -> Any:
        nonlocal state
        state, loss = compiled(state, x, wanted)
        return loss

    return step, float
