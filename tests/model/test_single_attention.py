"""The kernel for a picture or a few computes attention as defined; where there is no GPU, Triton interprets it."""

import pytest
import torch

import vitrail
from tests.model.interpreting import interpreted
from tests.model.test_mid_attention import as_defined
from vitrail.model import attention
from vitrail.model.zoo import configure

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
CASES = [  # batch, tokens, heads, width, read
    (1, 197, 3, 64, 197),
    (2, 197, 1, 64, 1),
    (1, 1, 1, 32, 1),
    (1, 65, 2, 32, 65),
    (3, 50, 2, 64, 17),
    (1, 256, 1, 128, 2),
]


def apart(case, dtype, device):
    """How far the kernel is from the definition in float64, over the largest number."""
    from vitrail.model.kernels.single_attention import single_attention

    batch, tokens, heads, width, read = case
    torch.manual_seed(0)
    qkv = (2 * torch.randn(batch + 1, tokens, 3 * heads * width, device=device)).to(dtype)
    qkv[batch:] = float("nan")  # what comes after the last token is not seen
    qkv = qkv[:batch]
    found = single_attention(qkv, heads, width**-0.5, read)
    right = as_defined(qkv.double(), heads, width**-0.5)[0][:, :read]
    assert found.shape == right.shape
    assert found.dtype == dtype
    return float((found - right).abs().max() / right.abs().max())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_the_kernel_computes_the_definition():
    script = (
        "from tests.model.test_single_attention import CASES, apart, torch\n"
        "print(*(apart(case, torch.float32, 'cpu') for case in CASES))\n"
    )
    found = interpreted(script)
    assert len(found) == len(CASES)
    assert max(found) < 1e-5


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_the_gpu_computes_the_definition(case, dtype):
    assert apart(case, dtype, "cuda") < 0.02


@on_gpu
def test_torch_finds_nothing_wrong_with_the_operator():
    from vitrail.model.kernels.single_attention import single_attention

    qkv = torch.randn(1, 50, 3 * 2 * 64, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(single_attention, (qkv, 2, 0.125, 50))


@on_gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_a_compiled_model_answers_as_it_does_without(mode, pool):
    torch.manual_seed(0)
    options = {"img_size": 64, "depth": 2, "num_classes": 10, "pool": pool, "zero_head": False}
    model = vitrail.create("vit_ti16", **options).cuda().bfloat16().eval()
    picture = torch.randn(1, 3, 64, 64, device="cuda", dtype=torch.bfloat16)
    torch.compiler.reset()
    run = torch.compile(model, mode=mode)
    with torch.inference_mode():
        plain = model(picture)
        for _ in range(3):  # the third is played from a CUDA graph
            found = run(picture).clone()
    assert (found - plain).float().abs().max() < 0.05 * plain.float().std() + 0.02


class SeenError(Exception):
    """Enough was seen; there is nothing here to run it."""


def test_a_compiler_sees_one_operator_in_each_block(monkeypatch):
    """Of a model that believes that it is on a GPU."""
    monkeypatch.setattr(attention, "half_on_gpu", lambda x: torch.bfloat16)
    model = vitrail.create("vit_ti16", img_size=64, depth=3, num_classes=10).bfloat16().eval()
    operators = []

    def look(graph, inputs):
        operators.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        raise SeenError

    torch.compiler.reset()
    with torch.inference_mode(), pytest.raises(Exception, match="SeenError"):
        torch.compile(model, backend=look, fullgraph=True)(torch.randn(1, 3, 64, 64, dtype=torch.bfloat16))
    assert operators.count(torch.ops.vitrail.single_attention.default) == 3
    assert not any("scaled_dot_product" in str(one) for one in operators)


def test_what_is_exported_has_none_of_it(monkeypatch):
    monkeypatch.setattr(attention, "half_on_gpu", lambda x: torch.bfloat16)
    model = vitrail.create("vit_ti16", img_size=64, depth=2, num_classes=10).bfloat16().eval()
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(1, 3, 64, 64, dtype=torch.bfloat16),))
    targets = [str(node.target) for node in program.graph.nodes]
    assert sum("scaled_dot_product" in one for one in targets) == 2
    assert not any("single_attention" in one for one in targets)


def kinds(model, x, compiling=True, grad=False, **given):
    """What attention is done by, of a model that believes that it is on a GPU."""
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(grad):
        patch.setattr(attention, "half_on_gpu", lambda x: x.dtype)
        patch.setattr(torch.compiler, "is_dynamo_compiling", lambda: compiling)
        return model._is_single(model.qkv(x), given.get("turn"))


def test_who_is_served_by_it():
    def of(**options):
        return attention.Attention(configure("vit_ti16", **options)).eval()

    one = torch.randn(1, 197, 192)
    assert kinds(of(), one)
    assert not kinds(of(), one, compiling=False)
    assert not kinds(of(), one, grad=True)
    assert not kinds(of().train(), one)
    assert not kinds(of(qk_norm=True), one)
    assert not kinds(of(), one, turn=torch.ones(1))
    assert not kinds(of(), torch.randn(1, 257, 192))
    assert kinds(of(), torch.randn(2, 197, 192))
    assert not kinds(of(), torch.randn(3, 197, 192))
