"""`compile = true` where a compiler works, and where it does not: then all is as without it, but for a line."""

from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import vitrail
from tests.training.parallel_runs import SMALL
from tests.training.processes import run_ranks
from tests.training.running import RICH, assert_same_training, make_pictures, rows_of
from vitrail.model import ViT, ViTConfig, kernel_sizes
from vitrail.training import assembly, compiling, ema, muon
from vitrail.training.compiling import fused
from vitrail.training.job import Job
from vitrail.training.log import read_log
from vitrail.training.losses import CrossEntropy
from vitrail.training.objective import Classification
from vitrail.training.parallel import World
from vitrail.training.progress import count
from vitrail.training.train import resume, train

WORDS = "torch.compile does not work here, so training goes on without it: "
CPU = torch.device("cpu")


def refuse(graph, inputs):
    raise RuntimeError("this one\nfails")


FAILING = {
    "at once": refuse,
    "on the way back": aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=refuse),
}


@pytest.fixture(autouse=True)
def forgotten():
    """What one test has compiled is not there for the next."""
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="module")
def no_report():
    """Drawing takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "_write_report", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="module")
def plain(pictures, tmp_path_factory):
    torch.set_num_threads(1)
    return begin(pictures, tmp_path_factory.mktemp("plain") / "run", False)


def begin(pictures, run, compiled, **others):
    changes = RICH | {"compile": compiled} | others
    return vitrail.train(pictures, recipe="small", out=run, changes=changes, device="cpu").folder


def events(run):
    return [row["text"] for row in read_log(run) if row["kind"] == "event"]


def assert_same_but_for_the_reason(run, plain, reason):
    assert events(run) == [WORDS + reason]
    others = [row for row in rows_of(run) if row["kind"] != "event"]
    assert others == rows_of(plain)
    (run / "log.jsonl").write_bytes((plain / "log.jsonl").read_bytes())
    assert_same_training(run, plain)


@pytest.mark.parametrize("when", FAILING)
def test_a_compiler_that_fails_leaves_the_training_as_it_is(pictures, plain, tmp_path, monkeypatch, capsys, when):
    monkeypatch.setattr(compiling, "BACKEND", FAILING[when])
    run = vitrail.train(
        pictures, recipe="small", out=tmp_path / "run", changes=RICH | {"compile": True}, device="cpu", quiet=False
    )
    assert WORDS + "this one" in capsys.readouterr().out.splitlines()
    assert run.recipe.compile
    assert_same_but_for_the_reason(run.folder, plain, "this one")


def begin_without_compiler(rank, size, pictures, run):
    """In a process of its own, as what was found out about compilers is kept."""
    from torch._inductor import config

    config.cpp.cxx, config.force_disable_caches = ("no-such-compiler",), True
    Job._write_report = lambda *_: None
    begin(pictures, run, True)


@pytest.mark.slow
def test_no_compiler_at_all_is_said_too(pictures, plain, tmp_path):
    run = tmp_path / "run"
    run_ranks(1, tmp_path, begin_without_compiler, pictures, run)
    assert "No working C++ compiler" in events(run)[0]
    assert_same_but_for_the_reason(run, plain, events(run)[0].removeprefix(WORDS))


def test_what_is_compiled_is_what_trains_and_evaluations_are_as_written(pictures, plain, tmp_path, monkeypatch):
    graphs, calls = [], []

    def watched(graph, inputs):
        graphs.append(graph)

        def forward(*arguments):
            calls.append(torch.is_inference_mode_enabled())
            return graph.forward(*arguments)

        return forward

    monkeypatch.setattr(compiling, "BACKEND", watched)
    run = begin(pictures, tmp_path / "run", True)
    assert events(run) == []
    assert len(graphs) == 1  # that of the trial
    assert calls == [False] * (1 + 12 * 2)  # the trial, then two parts a step; no evaluation
    for one, two in zip(rows_of(run), rows_of(plain), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)


def test_a_teacher_is_compiled_with_the_model_that_learns(pictures, tmp_path, monkeypatch):
    begin(pictures, tmp_path / "teacher", False)
    graphs, learning = [], []

    def watched(graph, inputs):
        def forward(*arguments):
            learning.append(torch.is_grad_enabled())
            return graph.forward(*arguments)

        graphs.append(graph)
        return forward

    monkeypatch.setattr(compiling, "BACKEND", watched)
    teacher = {"distillation.teacher": str(tmp_path / "teacher")}
    run = begin(pictures, tmp_path / "run", True, **teacher)
    assert events(run) == []
    assert len(graphs) == 2  # two models, each compiled once
    assert learning == [True, False] * (1 + 12 * 2)  # the trial, then two parts a step; no evaluation
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", refuse)
    assert events(begin(pictures, tmp_path / "refused", True, **teacher)) == [WORDS + "this one"]


def test_a_run_that_goes_on_where_nothing_compiles_says_so(pictures, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "BACKEND", "eager")
        patch.setattr("vitrail.training.loop.Trainer._evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            begin(pictures, tmp_path / "run", True)
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", refuse)
    run = resume(tmp_path / "run", device="cpu")
    assert events(run.folder) == [WORDS + "this one"]
    assert run.is_complete


def small_model():
    torch.manual_seed(0)
    return ViT(ViTConfig(img_size=8, patch_size=4, embed_dim=16, depth=3, num_heads=2, num_classes=5, zero_head=False))


def test_blocks_are_compiled_each_by_itself_and_written_inside_an_evaluation(monkeypatch):
    model, plain, pictures = small_model(), small_model(), torch.randn(4, 3, 8, 8)
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    alone, loss = World(0, 1, CPU), lambda one: one(pictures).sum()
    assert compiling.compile_or_say_why(model, loss, alone, nullcontext, blocks=True) is None
    compiled = [name for name, module in model.named_modules() if "forward" in vars(module)]
    assert compiled == ["blocks.0", "blocks.1", "blocks.2"]
    torch.testing.assert_close(model(pictures), plain(pictures))
    with compiling.uncompiled(model):
        assert not any("forward" in vars(module) for module in model.modules())
        assert torch.equal(model(pictures), plain(pictures))
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == compiled
    assert all(parameter.grad is None for parameter in model.parameters())


def fail_on_one(rank, size, folder, sharded):
    compiling.BACKEND = refuse if rank == 1 else "eager"
    Job._write_report = lambda *_: None  # drawing takes seconds
    train(None, out=folder / "run", device="cpu", shard=sharded, **(SMALL | {"steps": 2, "compile": True}))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["copies", "shards"])
def test_what_fails_for_one_process_is_left_by_all(tmp_path, sharded):
    run_ranks(2, tmp_path, fail_on_one, tmp_path, sharded)
    assert events(tmp_path / "run") == [WORDS + "this one"]


def compile_all(rank, size, folder):
    compiling.BACKEND = "eager"
    Job._write_report = lambda *_: None
    train(None, out=folder / "run", device="cpu", shard=True, **(SMALL | {"steps": 2, "compile": True}))


@pytest.mark.slow
def test_shards_train_and_are_evaluated_with_compiled_blocks(tmp_path):
    run_ranks(2, tmp_path, compile_all, tmp_path)
    assert events(tmp_path / "run") == []


@pytest.mark.slow
def test_the_real_compiler_learns_the_same(pictures, tmp_path):
    still = {"architecture.dropout": 0.0, "architecture.drop_path": 0.0}  # it draws its noise otherwise
    plain, run = (begin(pictures, tmp_path / f"run {compiled}", compiled, **still) for compiled in (False, True))
    assert events(run) == []
    for one, two in zip(rows_of(run), rows_of(plain), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-3)


def test_what_is_beside_the_model_is_one_piece_for_a_compiler(monkeypatch):
    """Else a GPU makes many short passes of it after all: of the optimiser's matrices, of the average, of the loss, of
    the counters."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    torch.manual_seed(0)
    shapes, ok, said = [(48, 16), (16, 16), (64, 16), (16, 64)], torch.tensor(True), []
    gradients = [torch.randn(shape) for shape in shapes]
    logits, labels = torch.randn(8, 5), torch.arange(8) % 5
    objective = Classification(CrossEntropy(0.1, None), 5, multi_label=False)
    found = []
    for way in (lambda function: fused(function, said.append), lambda function: function):
        matrices, means = [torch.ones(shape) for shape in shapes], [torch.zeros(shape) for shape in shapes]
        sums, average = torch.zeros(8), [torch.zeros(shape) for shape in shapes]
        numbers = [3, 1, 1, 1], [0.03] * 4, [-0.001] * 4, 0.9, torch.tensor(0.5), torch.tensor(0.0)
        way(muon._update)(matrices, [one.clone() for one in gradients], means, *numbers)
        way(ema._take)(average, matrices, ok, 0.1)
        loss, right = way(objective._scored)(logits, labels)
        way(count)(sums, loss, right, 8, torch.tensor(2.0), ok)
        found.append([*matrices, *means, *average, loss, right, sums])
    assert not said
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_process_may_train_with_more_learning_rates_than_a_compiler_keeps_forms_of_itself(monkeypatch):
    """A study of them does."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    said, place, before = [], torch.zeros(()), counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(recompile_limit=8):
        for rate in range(1, 13):
            fused(add_times, said.append)(place, rate / 8)
    assert float(place) == sum(range(1, 13)) / 8
    assert counters["stats"]["unique_graphs"] == before + 12
    assert not said


def test_beyond_all_forms_that_are_kept_it_goes_on_as_it_is(monkeypatch):
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    monkeypatch.setattr(compiling, "FORMS", 3)
    said, place = [], torch.zeros(())
    with torch._dynamo.config.patch(recompile_limit=3):
        for rate in range(1, 6):
            fused(add_times, said.append)(place, rate / 8)
    assert float(place) == sum(range(1, 6)) / 8
    assert len(said) == 2


def add_times(place, rate):
    place.add_(torch.ones(()) * rate)


def test_where_steps_are_recorded_the_model_is_tried_as_they_are(pictures, tmp_path, monkeypatch):
    """With kernels for layers of any size: else it would be compiled again at the first step."""
    seen = []

    def tried(*_, **__):
        seen.append(kernel_sizes.LEAST_WORK)
        return "not here"

    monkeypatch.setattr(assembly, "compile_or_say_why", tried)
    for name, record in (("recorded", True), ("plain", False)):
        monkeypatch.setattr(assembly, "why_not", lambda *_, record=record: None if record else "not asked for")
        begin(pictures, tmp_path / name, True)
    assert seen == [0, kernel_sizes.LEAST_WORK]


def test_what_a_compiler_fails_to_fuse_goes_on_as_it_is_and_is_said_once(monkeypatch):
    monkeypatch.setattr(compiling, "BACKEND", refuse)
    said, place = [], torch.zeros(3)
    add = fused(lambda x: x.add_(1), said.append)
    add(place)
    add(place)
    assert place.tolist() == [2, 2, 2]  # nothing was done twice
    assert len(said) == 1
    assert said[0].endswith("which goes on as it is: this one")


class Squared(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


class SquaredLayer(torch.nn.Linear):
    def forward(self, x):
        return Squared.apply(super().forward(x))


def test_the_next_process_finds_what_was_compiled_though_gradients_are_written_by_hand():
    """`reset` forgets all but what lies on the disk."""
    x = torch.randn(2, 4)
    counters.clear()
    with fresh_cache():
        for _ in range(2):
            torch._dynamo.reset()
            layer = SquaredLayer(4, 3)
            compiling._compile([layer])
            layer(x).sum().backward()
            inner = x @ layer.weight.T + layer.bias
            torch.testing.assert_close(layer.weight.grad, (2 * inner).T @ x)
    found = {name: counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("bypass", "miss", "hit")}
    assert found == {"bypass": 0, "miss": 1, "hit": 1}
