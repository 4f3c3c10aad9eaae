"""Memory that torch and the device share, transfers beside computing, what is told of memory."""

import time

import torch

from gpu_parts.place import Place


def dlpack(place: Place) -> None:
    """Tensors go to torch and come from it without a copy; in-place writes arrive in order."""
    import torch_xla
    from torch_xla.utils.dlpack import from_dlpack, to_dlpack

    ours = torch.arange(1024.0).to("xla") * 2
    torch_xla.sync()
    theirs = torch.from_dlpack(to_dlpack(ours))
    again = torch.from_dlpack(to_dlpack(ours))
    place.need("torch has it where it was", theirs.device.type == place.torch_device, theirs.device)
    place.need("two exports are one memory", theirs.data_ptr() == again.data_ptr())
    place.need("torch reads what was computed", theirs[7].item() == 14.0)

    source = torch.arange(4096.0, device=place.torch_device) + 1
    came = from_dlpack(source)
    back = torch.from_dlpack(to_dlpack(came))
    is_same = back.data_ptr() == source.data_ptr()
    place.found("memory came without a copy", is_same)
    # A CPU's may lie where XLA cannot use it as it is.
    place.need_on_gpu("memory comes without a copy", lambda: is_same)
    # Its program may not write where torch reads.
    came += 1
    torch_xla.sync()
    place.need("a write to ours leaves torch's", source[5].item() == 6.0, source[5].item())
    place.need("and ours has it", came[5].item() == 7.0, came[5].item())

    size = 16 if place.rehearses else 4096
    x = torch.randn(size, size, device=place.torch_device)
    sums = []
    for _ in range(8):
        # Each product is queued when the next reader asks for it: nobody waits, all must agree.
        x = torch.tanh(x @ x / size)
        sums.append((from_dlpack(x).sum(), x.sum()))
    is_right = all(abs(one.item() - other.item()) <= 1e-2 * size for one, other in sums)
    place.need("the device waits for what torch has queued", is_right)


def transfers(place: Place) -> None:
    """Uploads of the next batch while a step computes: what both take, beside each alone."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    size, n = (64, 1 << 12) if place.rehearses else (8192, 1 << 26)
    weight = torch.randn(size, size).to("xla") / size**0.5
    batches = [torch.randn(n) for _ in range(2)]
    if not place.rehearses:
        batches = [batch.pin_memory() for batch in batches]
    place.found("pinned", batches[0].is_pinned())

    def compute() -> torch.Tensor:
        x = weight
        for _ in range(4 if place.rehearses else 16):
            x = x @ weight
        torch_xla.sync()
        return x

    def upload(number: int) -> torch.Tensor:
        return batches[number % 2].to("xla")

    def took_s(computes: bool, uploads: bool) -> float:
        kept = []
        for number in range(2):
            kept = [compute() if computes else None, upload(number) if uploads else None]
        xm.wait_device_ops()
        started = time.perf_counter()
        for number in range(4):
            kept = [compute() if computes else None, upload(number) if uploads else None]
        for one in kept:
            if one is not None:
                one[..., :1].cpu()
        xm.wait_device_ops()
        return (time.perf_counter() - started) / 4

    alone, moved, both = took_s(True, False), took_s(False, True), took_s(True, True)
    figures = {"compute_s": alone, "upload_s": moved, "both_s": both}
    hidden = (alone + moved - both) / min(alone, moved)
    place.found("seconds", {name: round(value, 5) for name, value in figures.items()})
    place.found("hidden_share", round(hidden, 3))
    place.found("upload_gb_s", round(4e-9 * n / moved, 2))
    place.need_on_gpu("at least half of the shorter is hidden", lambda: hidden > 0.5, figures)


def memory(place: Place) -> None:
    """What is told of memory grows with what is held and shrinks with what is dropped."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    device = torch_xla.device()
    size = 1 << (16 if place.rehearses else 28)
    before = xm.get_memory_info(device)
    held = torch.ones(size, device=device)
    torch_xla.sync()
    xm.wait_device_ops()
    during = xm.get_memory_info(device)
    del held
    torch_xla.sync()
    after = xm.get_memory_info(device)
    place.found("bytes", {"before": before, "during": during, "after": after})
    place.need("the limit is told", during["bytes_limit"] > 0, during)
    grown, given = (
        during["bytes_used"] - before["bytes_used"],
        during["bytes_used"] - after["bytes_used"],
    )
    place.need_on_gpu("what is held is counted", lambda: grown >= 4 * size, grown)
    place.need_on_gpu("what is dropped is not", lambda: given >= 4 * size, given)
    place.need("the peak is no less", during["peak_bytes_used"] >= during["bytes_used"], during)
    if not place.rehearses:
        place.found("torch.cuda.mem_get_info", torch.cuda.mem_get_info())


def full(place: Place) -> None:
    """A step for which there is no memory is an error with its numbers; the rest goes on."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist.errors import OutOfMemoryError

    device = torch_xla.device()
    weight = torch.zeros(1 << 10, device=device)
    weight += 1
    words = ""
    large = torch.rand(*[1024] * 5, device=device)
    total = large.sum()
    try:
        total.item()
    except OutOfMemoryError as error:
        words = str(error)
    place.need("more than there is at all is an error", "Out of memory" in words, words)
    del large, total
    torch_xla.sync()
    place.need("others are there", weight[3].item() == 1.0)
    if place.rehearses:
        place.left_out("a device that fills up", "rehearsed on a CPU")
        return
    limit, kept, words = xm.get_memory_info(device)["bytes_limit"], [], ""
    each = limit // 4 // 5  # five of them and a little
    try:
        for number in range(8):
            weight += 1
            kept.append(torch.full((each,), float(number), device=device))
            torch_xla.sync(wait=True)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    place.found("a device that fills up", [len(kept), words])
    place.need("it ends with that error", words.startswith("OutOfMemoryError"), words)
    filled = [one[7].item() for one in kept[:4]]
    place.need("what was kept is right", filled == [0.0, 1.0, 2.0, 3.0], filled)
    count = float(len(kept) + 1)
    del kept
    torch_xla.sync()
    place.need("a step goes on afterwards", weight[3].item() == count, [weight[3].item(), count])
