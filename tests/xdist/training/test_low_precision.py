"""A GPT trained in lower precision reaches the loss of eager torch in float32."""

import contextlib
import functools
import statistics

import pytest
import torch
from models import Gpt, class_loss

import torch_xla
from torch_xla.amp import GradScaler, autocast, syncfree

STEPS, LAST = 40, 10


@functools.cache
def batches():
    """Tokens [4, 33] of a noisy chain over 16 tokens: there is something to learn, and a floor."""
    generator = torch.Generator().manual_seed(1)
    chain = (torch.randn(16, 16, generator=generator) * 2).softmax(1)
    found = torch.randint(16, (STEPS, 4, 33), generator=generator)
    for place in range(1, 33):
        rows = chain[found[:, :, place - 1].flatten()]
        found[:, :, place] = torch.multinomial(rows, 1, generator=generator).view(STEPS, 4)
    return found


def final_loss(device, dtype=torch.float32, cast=None, scaler=None, adamw=torch.optim.AdamW):
    torch.manual_seed(0)
    model = Gpt(vocabulary=16, layers=1).to(device, dtype)
    optimizer = adamw(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches():
        tokens = batch.to(device)
        optimizer.zero_grad()
        with contextlib.nullcontext() if cast is None else autocast("xla", dtype=cast):
            logits = model(tokens[:, :-1])
        loss = class_loss(logits.float(), tokens[:, 1:])
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
        if device == "xla":
            torch_xla.sync()
    first, *_, last = (loss.item() for loss in losses)
    assert last < 0.8 * first
    return statistics.mean(loss.item() for loss in losses[-LAST:])


@functools.cache
def expected():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other here
    try:
        return final_loss("cpu")
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "way",
    [
        {"cast": torch.bfloat16},
        {"dtype": torch.bfloat16},
        pytest.param({"cast": torch.float16, "scaler": GradScaler}, marks=pytest.mark.long),
        pytest.param(
            {"cast": torch.float16, "scaler": GradScaler, "adamw": syncfree.AdamW},
            marks=pytest.mark.long,
        ),
        pytest.param({"dtype": torch.bfloat16, "adamw": syncfree.AdamW}, marks=pytest.mark.long),
    ],
    ids=["autocast", "bfloat16", "scaler", "scaler and syncfree", "bfloat16 and syncfree"],
)
def test_the_loss_is_within_two_percent_of_float32(way):
    if "scaler" in way:
        way = {**way, "scaler": way["scaler"](growth_interval=10)}
    assert final_loss("xla", **way) == pytest.approx(expected(), rel=0.02)
