"""Modules whose parameters are divided between ranks, against the undivided ones."""

import pytest
import torch
from torch import nn

STEPS = 3


class Block(nn.Module):
    """A residual block with a parameter of its own, of no even size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(torch.relu(self.up(self.norm(x))))


class Language(nn.Module):
    """Tied embeddings around blocks; the embedding and a frozen scale belong to the root."""

    def __init__(self, width: int = 5, words: int = 11) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width)])
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.full((words,), 1.5), requires_grad=False)
        self.register_buffer("shift", torch.linspace(0, 1, words))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale + self.shift


def make_model():
    torch.manual_seed(0)
    return Language()


def batches(size):
    """For each step, the tokens of `size` ranks: [size * 2, 5]."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 11, (size * 2, 5), generator=generator) for _ in range(STEPS)]


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def whole_training(size, clip=None, dtype=None):
    """Losses and parameters of one process with the batches of all ranks."""
    model = make_model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for tokens in batches(size):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def wrapped(options, how):
    """The model as units: "root" only, each "block" too, or what a policy chooses."""
    import functools

    from torch_xla.distributed import fsdp
    from torch_xla.distributed.fsdp import wrap

    model = make_model()
    if how == "blocks":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = fsdp.FSDP(block, **options)
    if how == "checkpointed":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = fsdp.FSDP(fsdp.checkpoint_module(block), **options)
    if how == "outside":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = fsdp.checkpoint_module(fsdp.FSDP(block, **options))
    if how == "embedding":
        model.embed = fsdp.FSDP(model.embed, **options)
    if how == "policy":
        policy = functools.partial(
            wrap.transformer_auto_wrap_policy, transformer_layer_cls={type(model.blocks[0])}
        )
        return fsdp.FSDP(model, auto_wrap_policy=policy, **options)
    return fsdp.FSDP(model, **options)


def sharded_training(rank, size, how, options, clip=None):
    """The losses, the whole state dict, and what the cuts were."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist.core.run import cuts

    model = wrapped(options, how)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses, log = [], []
    for tokens in batches(size):
        optimizer.zero_grad()
        cuts.LOG.clear()
        loss = loss_of(model, tokens.chunk(size)[rank].to("xla"))
        loss.backward()
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()
        torch_xla.sync()
        log.append([(cut.reason, cut.compiled) for cut in cuts.LOG])
        losses.append(xm.all_reduce("sum", loss.detach(), scale=1 / size).item())
    held = sum(p.numel() for p in model.parameters())
    return losses, model.full_state_dict(), log, held


WAYS = [
    ("blocks", {}),
    ("embedding", {"flatten_parameters": True, "_shard_size_multiple": 1}),
]
MORE_WAYS = [
    ("root", {}),
    ("blocks", {"flatten_parameters": True, "reshard_after_forward": False}),
    ("policy", {"shard_param_on_dim_0": True}),
    ("checkpointed", {"_shard_size_multiple": 1}),
    ("embedding", {}),
    ("outside", {}),
    ("blocks", {"disable_reshard_on_root": False, "reduce_scatter_bucket_size_mb": 1}),
    (
        "blocks",
        {"optimization_barrier_in_forward": False, "optimization_barrier_in_backward": False},
    ),
    ("checkpointed", {"flatten_parameters": True}),
    ("blocks", {"sharding_groups": [[0, 1]], "sharding_rank": None, "sharding_world_size": 2}),
]
ROWS = [
    *WAYS,
    *[pytest.param(how, options, marks=pytest.mark.long) for how, options in MORE_WAYS],
]


def check_like_whole(size, results, clip=None):
    losses, model = whole_training(size, clip)
    for found, state, log, _ in results:
        assert found == pytest.approx(losses, rel=1e-5)
        assert list(state) != [] and set(state) == set(model.state_dict())
        for name, expected in model.state_dict().items():
            torch.testing.assert_close(state[name], expected, rtol=1e-5, atol=1e-5)
        # One cut per step, and nothing new to compile in the third.
        assert [[reason for reason, _ in cuts] for cuts in log] == [["sync"]] * STEPS
        assert log[-1] == [("sync", False)]


@pytest.mark.parametrize(("how", "options"), ROWS, ids=lambda value: str(value)[:60])
def test_a_sharded_model_trains_like_a_whole_one(two, how, options):
    check_like_whole(2, two.run(sharded_training, how, options))


@pytest.mark.long
def test_three_ranks_clip_by_the_norm_over_all(three):
    check_like_whole(3, three.run(sharded_training, "root", {}, 0.05), clip=0.05)


def small_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 5))


def rows_of(rank, step=0):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def held_bytes(rank, size):
    """Bytes of buffers on this rank's device between steps, without and with sharding."""
    import gc

    import jax

    import torch_xla
    from torch_xla.distributed.fsdp import FSDP

    def living():
        gc.collect()
        torch_xla.sync(wait=True)
        return sum(array.nbytes for array in jax.live_arrays())

    found = []
    for wrap in (lambda m: m.to("xla"), lambda m: FSDP(m, _shard_size_multiple=1)):
        before = living()
        model = wrap(nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 301)))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 300).to("xla")).sum().backward()
            optimizer.step()
            torch_xla.sync()
        optimizer.zero_grad()
        found.append(living() - before)
        del model, optimizer
    return found


def test_a_rank_holds_its_part_of_parameters_and_optimizer_state(two):
    for whole, part in two.run(held_bytes):
        assert whole >= 3 * 4 * (300 * 300 + 300 * 301)
        assert part == pytest.approx(whole / 2, rel=0.02)


def accumulated(rank, size):
    """Two backward passes with one scattering, then a frozen layer, then the shards' copy."""
    import copy

    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import FSDP

    inner = small_model()
    inner[0].requires_grad_(False)
    inner[0] = FSDP(inner[0])
    model = FSDP(inner)
    with model.no_sync():
        model(rows_of(rank).to("xla")).square().mean().backward()
        assert all(p.grad is None for p in model.parameters())
    model(rows_of(rank, 1).to("xla")).square().mean().backward()
    model[0].requires_grad_(True)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # The gradients of shards are averaged already, and stay so.
    xm.optimizer_step(optimizer)
    model.zero_grad()
    model(rows_of(rank, 2).to("xla")).square().mean().backward()
    optimizer.step()
    return [model.full_state_dict(), twin.full_state_dict(), model.full_state_dict(rank0_only=True)]


def test_gradients_accumulate_and_layers_freeze(two):
    model = small_model()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for steps in ((0, 1), (2,)):
        model[0].requires_grad_(steps == (2,))
        optimizer.zero_grad()
        for step in steps:
            for rank in range(2):
                (model(rows_of(rank, step)).square().mean() / 2).backward()
        optimizer.step()
    results = two.run(accumulated)
    for trained, twin, _ in results:
        for name, expected in model.state_dict().items():
            torch.testing.assert_close(trained[name], expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(twin[name], first[name])
    assert [set(at_rank_0) for _, _, at_rank_0 in results] == [set(first), set()]


def half_precision(rank, size):
    import torch_xla
    from torch_xla.distributed.fsdp import FSDP

    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(x.dtype)
            return x

    options = {"compute_dtype": torch.bfloat16, "fp32_reduce_scatter": True}
    inner = nn.Sequential(small_model(), Looks(), nn.BatchNorm1d(5))
    model = FSDP(inner, sync_on_finalization=True, buffer_dtype=torch.float32, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        loss = (model(rows_of(rank, step % 3).to("xla")).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch_xla.sync()
    dtypes = {p.dtype for p in model.parameters()} | {p.grad.dtype for p in model.parameters()}
    return losses[0].item(), losses[-1].item(), seen[0], dtypes, inner[2].running_mean.dtype


def test_a_model_computes_in_half_and_keeps_its_shards_whole(two):
    for first, last, computed, kept, buffer in two.run(half_precision):
        assert last < 0.8 * first
        assert (computed, kept, buffer) == (torch.bfloat16, {torch.float32}, torch.float32)


def saved(rank, size, folder):
    """Checkpoints as torch_xla's documents write them; then the job goes on from them."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import FSDP

    def make(how="embedding"):
        return wrapped({"flatten_parameters": True}, how)

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step, tokens in enumerate(batches(size)):
        if step == 1:
            checkpoint = {
                "model": model.state_dict(),
                "shard_metadata": model.get_shard_metadata(),
                "optimizer": optimizer.state_dict(),
            }
            path = f"{folder}/job_rank-{rank}-of-{size}.pth"
            xm.save(checkpoint, path, master_only=False)
            loaded = torch.load(path)
            model = make()
            model.load_state_dict(loaded["model"])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer.load_state_dict(loaded["optimizer"])
            # A plain state dict makes the same shards.
            whole = model.full_state_dict()
            other = FSDP(make_model())
            other.load_full_state_dict(whole)
            again = other.full_state_dict()
            assert all(torch.equal(again[name], value) for name, value in whole.items())
            names = [name for name, _ in other.get_original_names_and_sharded_parameters()]
            assert names[:2] == ["scale", "embed.weight"]
        optimizer.zero_grad()
        loss = loss_of(model, tokens.chunk(size)[rank].to("xla"))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses, whole


def test_checkpoints_go_on_and_become_one_that_needs_nothing_of_ours(two, tmp_path, capsys):
    from torch_xla.distributed.fsdp import consolidate_sharded_ckpts

    results = two.run(saved, str(tmp_path))
    arguments = ["--ckpt_prefix", str(tmp_path / "job"), "--ckpt_suffix", "_rank-*-of-*.pth"]
    consolidate_sharded_ckpts.main(arguments)
    assert "job_consolidated.pth" in capsys.readouterr().out
    state = torch.load(tmp_path / "job_consolidated.pth", weights_only=True)["model"]
    model = make_model()
    model.load_state_dict(state, strict=True)
    for _, whole in results:
        assert all(torch.equal(state[name], value) for name, value in whole.items())
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, tokens in enumerate(batches(2)):
        optimizer.zero_grad()
        losses = [loss_of(model, part) for part in tokens.chunk(2)]
        (sum(losses) / 2).backward()
        optimizer.step()
        for rank, loss in enumerate(losses):
            assert results[rank][0][step] == pytest.approx(loss.item(), rel=1e-5)


def refused(rank, size):
    from torch_xla.distributed.fsdp import FSDP

    told = []

    def tell(call):
        try:
            call()
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")

    inner = small_model()
    inner[0] = FSDP(inner[0])
    model = FSDP(inner)
    tell(lambda: FSDP(model))
    tell(lambda: FSDP(inner, auto_wrap_policy=lambda **_: True))
    tell(lambda: FSDP(nn.Linear(2, 2), sharding_groups=[[0, 1]], sharding_rank=5))
    with torch.no_grad():
        model[2].weight.mul_(2.0)
    loss = model(rows_of(rank).to("xla")).sum()
    tell(lambda: model[0].clip_grad_norm_(1.0))
    tell(lambda: model.load_full_state_dict({"2.bias": torch.zeros(3)}, strict=False))
    with torch.no_grad():
        model.sharded_params[0].mul_(2.0)
    tell(loss.backward)
    return told, model.full_state_dict()["2.weight"]


def test_mistakes_are_told_and_writes_reach_the_shards(two):
    for rank, (told, written) in enumerate(two.run(refused)):
        assert [text.split(";")[0] for text in told] == [
            "RuntimeError: FSDP: the module is a unit of FSDP already",
            "ValueError: FSDP: 0 is a unit of FSDP already",
            f"ArgumentError: FSDP: sharding_rank is 5, and by its groups rank {rank} has {rank}",
            "RuntimeError: clip_grad_norm_: this unit of FSDP is inside another, and has a part "
            "of the gradients only",
            "CheckpointError: load_full_state_dict: 2.bias is (3,), and the model has (5,)",
            "RuntimeError: FSDP: one of the variables needed for gradient computation has been "
            "modified by an inplace operation: a parameter changed between forward and backward",
        ]
        assert torch.equal(written, 4 * small_model()[2].weight)
