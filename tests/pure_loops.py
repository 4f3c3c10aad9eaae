"""Random small training loops, run twice: with `torch_xla.compile(pure=True)` and without.

Two worlds get the same actions, of which some are steps. After each, all that a script can see of
both must be the same to the bit: losses, parameters, gradients, buffers, states and saved tensors.
"""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm

BATCHES = (4, 3)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


class Net(nn.Module):
    """[n, 4] to [n, 1]; with a mode of its own, running statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.3)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x))))) * self.scale


class World:
    """A model in training, and what is done to it."""

    def __init__(self, optimizer: str, zero_outside: bool, is_pure: bool) -> None:
        torch.manual_seed(0)
        self.model = Net().to("xla")
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.batches = [torch.randn(n, 4).to("xla") for n in BATCHES]
        self.saved: list[torch.Tensor] = []
        self.hooks: list[Any] = []
        self.autocast = False
        self.losses: list[torch.Tensor] = []
        self.states = self._states()
        self.zero_outside = zero_outside
        model, optim = self.model, self.optimizer

        def step(x: torch.Tensor, fails: bool = False) -> Any:
            if not zero_outside:
                optim.zero_grad()
            out = model(x)
            loss = out.square().mean()
            if not model.training:
                return {"loss": loss, "out": out[0]}
            loss.backward()
            if fails:
                raise KeyError("on purpose")
            optim.step()
            return {"loss": loss, "out": out[0]}

        self.step = torch_xla.compile(step, pure=True) if is_pure else torch_xla.compile(step)
        torch_xla.manual_seed(5)
        torch_xla.sync()
        # One device serves both worlds.
        self.random_state = xm.get_rng_state()

    def _states(self) -> Any:
        with torch.no_grad():
            return {name: t.clone() for name, t in self.model.state_dict().items()}

    def act(self, action: str) -> None:
        name, _, what = action.partition(" ")
        getattr(self, f"do_{name}")(*what.split())

    def do_step(self, batch: str = "0", fails: str = "") -> None:
        if self.zero_outside:
            self.optimizer.zero_grad()
        cast = torch.autocast("xla", torch.bfloat16) if self.autocast else contextlib.nullcontext()
        with cast, contextlib.suppress(KeyError):
            result = self.step(self.batches[int(batch)], **({"fails": True} if fails else {}))
            self.losses += [result["loss"].detach(), result["out"].detach()]

    def do_steps(self) -> None:
        for _ in range(4):
            self.do_step()

    def do_rate(self, rate: str) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = float(rate)

    def do_schedule(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scheduler.step()

    def do_mode(self, mode: str) -> None:
        self.model.train(mode == "train")

    def do_freeze(self, layer: str, on: str) -> None:
        getattr(self.model, layer).requires_grad_(on == "off")

    def do_replace(self) -> None:
        self.model.last.weight = nn.Parameter(self.model.last.weight.detach() * 0.5)

    def do_load(self) -> None:
        self.model.load_state_dict(self.states)

    def do_reload_optimizer(self) -> None:
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def do_save_gradients(self) -> None:
        self.saved += [p.grad for p in self.model.parameters() if p.grad is not None]

    def do_save_parameters(self) -> None:
        self.saved += [p.detach() for p in self.model.parameters()]

    def do_clone(self) -> None:
        self.saved += [p.detach().clone() for p in self.model.parameters()]

    def do_clear(self) -> None:
        self.optimizer.zero_grad()

    def do_hook(self) -> None:
        self.model.first.requires_grad_(True)
        self.hooks.append(self.model.first.weight.register_hook(lambda g: g * 0.5))

    def do_module_hook(self) -> None:
        self.hooks.append(self.model.norm.register_forward_hook(lambda m, i, out: out + 1))

    def do_unhook(self) -> None:
        if self.hooks:
            self.hooks.pop().remove()

    def do_autocast(self) -> None:
        self.autocast = not self.autocast

    def do_write(self) -> None:
        with torch.no_grad():
            self.model.first.weight.mul_(0.9)

    def do_data(self) -> None:
        self.model.first.bias.data = self.model.first.bias.data + 0.25

    def do_share(self) -> None:
        with torch.no_grad():
            self.saved.append(torch.zeros_like(self.model.first.bias).copy_(self.model.first.bias))

    def do_dropout(self, p: str) -> None:
        self.model.drop.p = float(p)

    def do_scale(self, scale: str) -> None:
        self.model.scale = float(scale)

    def do_seed(self) -> None:
        torch_xla.manual_seed(11)

    def do_negate_gradients(self) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.neg_()

    def do_momentum(self) -> None:
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"].fill_(3)

    def seen(self) -> dict[str, Any]:
        """All that a script can see."""
        found: dict[str, Any] = dict(self.model.state_dict())
        for name, p in self.model.named_parameters():
            found[f"{name}.grad"] = p.grad
            found[f"{name} needs a gradient"] = p.requires_grad
            found.update({f"{name}.{k}": v for k, v in self.optimizer.state.get(p, {}).items()})
        found.update({f"saved {i}": t for i, t in enumerate(self.saved)})
        found.update({f"loss {i}": t for i, t in enumerate(self.losses)})
        found["random"] = self.random_state
        return found


ACTIONS = (
    *["step 0"] * 3, *["steps"] * 4, "step 1", "step 0 fails", "rate 0.05", "rate 0.2", "schedule",
    "mode eval", "mode train", "freeze first on", "freeze first off", "replace", "load",
    "reload_optimizer", "save_gradients", "save_parameters", "clone", "clear", "hook",
    "module_hook", "unhook", "autocast", "write", "data", "share", "dropout 0.1", "scale 2.0",
    "seed", "negate_gradients", "momentum",
)  # fmt: skip


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same to the bit."""
    found = [*{*one} ^ {*other}]
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            left, right = a.detach().cpu(), b.detach().cpu()
            if left.dtype != right.dtype or not torch.equal(_bits(left), _bits(right)):
                found.append(name)
        elif type(a) is not type(b) or a != b:
            found.append(name)
    return sorted(found)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.nan_to_num(123456.0) if tensor.is_floating_point() else tensor


def check(optimizer: str, zero_outside: bool, actions: list[str]) -> None:
    """Raise AssertionError where the two worlds differ after an action."""
    plain, pure = (World(optimizer, zero_outside, is_pure) for is_pure in (False, True))
    done = []
    for action in actions:
        done.append(action)
        for world in (plain, pure):
            xm.set_rng_state(world.random_state)
            world.act(action)
            world.random_state = xm.get_rng_state()
        if action.startswith("step") or len(done) == len(actions):
            differs = differences(plain.seen(), pure.seen())
            assert not differs, (optimizer, zero_outside, done, differs[:6])
