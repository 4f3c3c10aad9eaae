"""Mixed precision, attention, convolutions, TF32: the numbers, and how XLA computes them."""

import os
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gpu_parts.place import Place

# What XLA calls for attention as cuDNN has it, forward and backward.
FUSED = re.compile(r"__cudnn\$fmha\w*")
_CONVOLUTION = re.compile(r"__cudnn\$conv\w*")
_LAYOUT = re.compile(r"dim_labels=(\w+)")


def compiled_text(*tensors: torch.Tensor) -> str:
    """The program of pending tensors as XLA compiled it."""
    import torch_xla

    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"
    try:
        return str(torch_xla._XLAC._get_xla_tensors_hlo([*tensors]))
    finally:
        del os.environ["XLA_DUMP_POST_OPTIMIZATIONS"]


def worst(got: torch.Tensor, exact: torch.Tensor) -> float:
    """How far they are apart, as a share of the largest exact number."""
    apart = (got.detach().cpu().double() - exact.detach().cpu().double()).abs().max()
    return float(apart / exact.detach().abs().max().double().cpu())


def amp(place: Place) -> None:
    """float16 with a GradScaler and bfloat16 without: the loss falls, an overflow skips a step."""
    import torch_xla
    from torch_xla.amp import GradScaler, autocast

    device = torch_xla.device()
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
        net, x = net.to(device), torch.randn(32, 64).to(device)
        target = torch.randint(8, (32,)).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = GradScaler(enabled=dtype is torch.float16)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            with autocast(device, dtype=dtype):
                logits = net(x)
                loss = F.cross_entropy(logits, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch_xla.sync()
            losses.append(loss.item())
        place.found(f"losses in {dtype}", [round(loss, 4) for loss in losses])
        place.need(f"logits are {dtype}", logits.dtype is dtype, logits.dtype)
        place.need(f"the loss falls in {dtype}", losses[-1] < 0.9 * losses[0], losses)
    _overflow(place, device)


def _overflow(place: Place, device: torch.device) -> None:
    from torch_xla.amp import GradScaler

    weight = nn.Parameter(torch.ones(4, device=device))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler(init_scale=1024.0)
    scaler.scale((weight * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    kept, scale = bool((weight == 1).all().item()), scaler.get_scale()
    place.need("an overflow skips the step and halves the scale", kept and scale == 512.0, scale)


def attention(place: Place) -> None:
    """[b, h, t, d] with and without a causal mask, forward and backward, against float32."""
    import torch_xla

    device = torch_xla.device()
    b, h, t, d = (2, 2, 16, 8) if place.rehearses else (4, 12, 1024, 64)
    for dtype in (torch.bfloat16, torch.float16):
        for causal in (True, False):
            torch.manual_seed(0)
            host = [torch.randn(b, h, t, d).to(dtype) for _ in range(4)]
            here = [part.to(device).requires_grad_() for part in host[:3]]
            y = F.scaled_dot_product_attention(*here, is_causal=causal)
            y.backward(host[3].to(device))
            grads = [part.grad for part in here]
            name = f"{dtype}{', causal' if causal else ''}"
            text = compiled_text(y, *grads)  # type: ignore[arg-type]
            calls = sorted(set(FUSED.findall(text)))
            place.found(f"cuDNN's calls, {name}", calls)
            place.need_on_gpu(
                f"forward and backward are cuDNN's, {name}", lambda c=calls: len(c) >= 2, calls
            )  # type: ignore[misc]
            _near(place, name, [y, *grads], host, causal)


def _near(
    place: Place, name: str, got: Sequence[Any], host: Sequence[torch.Tensor], causal: bool
) -> None:
    # In float32 on the other device: a CPU takes long over the large ones.
    wide = [part.float().to(place.torch_device).requires_grad_() for part in host[:3]]
    y = F.scaled_dot_product_attention(*wide, is_causal=causal)
    y.backward(host[3].float().to(place.torch_device))
    apart = [worst(one, other) for one, other in zip(got, [y, *(w.grad for w in wide)])]  # type: ignore[arg-type]
    place.found(f"apart from float32, {name}", apart)
    place.need(f"attention is as exact as its dtype, {name}", max(apart) < 0.02, apart)


def convolutions(place: Place) -> None:
    """A convolution with its gradients: right, and as cuDNN wants it, channels last in bfloat16."""
    import torch_xla

    device = torch_xla.device()
    n, c, size = (2, 8, 8) if place.rehearses else (64, 128, 56)
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        host = [torch.randn(n, c, size, size), torch.randn(c, c, 3, 3) / 30]
        here = [part.to(dtype).to(device).requires_grad_() for part in host]
        y = F.conv2d(*here, padding=1)
        y.sum().backward()
        text = compiled_text(y, *(part.grad for part in here))  # type: ignore[arg-type]
        calls, layouts = sorted(set(_CONVOLUTION.findall(text))), sorted(set(_LAYOUT.findall(text)))
        place.found(f"calls and layouts, {dtype}", [calls, layouts])
        if dtype is torch.bfloat16:
            is_last = all(layout.startswith("b01f") for layout in layouts)
            place.need_on_gpu("channels are last", lambda: is_last, layouts)  # noqa: B023
        wide = [part.to(dtype).double().requires_grad_() for part in host]
        exact = F.conv2d(*wide, padding=1)
        exact.sum().backward()
        pairs = [(y, exact), *((one.grad, other.grad) for one, other in zip(here, wide))]
        apart = [worst(one, other) for one, other in pairs]  # type: ignore[arg-type]
        place.found(f"apart from float64, {dtype}", apart)
        # TF32, which torch allows convolutions unless told otherwise, has ten bits.
        limit = 4e-3 if dtype is torch.float32 else 0.02
        place.need(f"exact enough in {dtype}", max(apart) < limit, apart)


def tf32(place: Place) -> None:
    """Products of float32 as torch's flag says: exact unless TF32 is allowed."""
    import torch_xla

    n = 64 if place.rehearses else 1024
    torch.manual_seed(0)
    a, b = torch.randn(n, n), torch.randn(n, n)
    exact = a.double() @ b.double()
    apart = {}
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        apart[allowed] = worst(a.to("xla") @ b.to("xla"), exact)
        torch_xla.sync()
        if not place.rehearses:
            eager = worst(a.cuda() @ b.cuda(), exact)
            place.found(f"eager torch, allow_tf32={allowed}", eager)
    torch.backends.cuda.matmul.allow_tf32 = False
    place.found("apart from float64", {f"allow_tf32={k}": v for k, v in apart.items()})
    place.need("products are exact where TF32 is not allowed", apart[False] < 1e-5, apart)
    place.need_on_gpu("and rounded where it is", lambda: apart[True] > 1e-5, apart)
