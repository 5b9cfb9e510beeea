"""Which frameworks a trace shows: names that they give their ranges, and names near to those."""

from __future__ import annotations

import pytest

from tests.build import mark, op, trace
from tests.fixes.build import findings
from tests.simulator import Run, work
from tests.simulator.machine import COMMUNICATION, COMPUTE, US
from tests.simulator.programs import MATMUL, eight
from trace_doctor.fixes.frameworks import frameworks_of

OPS = {
    "vllm::unified_attention": "vLLM",
    "vllm::all_reduce": "vLLM",
    "sgl_kernel::fwd": "SGLang",
    "sglang::unified_attention_with_output": "SGLang",
    "LinearWithGradAccumulationAndAsyncCommunication": "Megatron-Core",
    "_ReduceFromModelParallelRegion": "Megatron-Core",
    "_GatherFromSequenceParallelRegionBackward": "Megatron-Core",
    "ScaledUpperTriangMaskedSoftmax": "Megatron-Core",
    "_VocabParallelCrossEntropyBackward": "Megatron-Core",
    "PostBackwardFunctionModuleBackward": "DeepSpeed",
    "PreBackwardFunctionForModule": "DeepSpeed",
    "fsdp::all_gather_copy_in": "FSDP2",
}
RANGES = {
    "gpu_model_runner: forward": "vLLM",
    "execute_context_0(0)_generation_8(8)": "vLLM",
    "forward_backward_no_pipelining": "Megatron-Core",
    "DeepSpeedEngine.forward": "DeepSpeed",
    "PartitionedParameterCoordinator.fetch_sub_module": "DeepSpeed",
    "Optimizer.step#DeepSpeedCPUAdam.step": "DeepSpeed",
    "FSDP::all_gather (layers.0)": "FSDP2",
    "FSDP::pre_forward (layers.0)": "FSDP2",
    "FSDP::root_pre_forward": "FSDP2",
    "FSDP::post_backward_reshard (layers.0)": "FSDP2",
    "FSDP::backward_prefetch for layers.0": "FSDP2",
    "FullyShardedDataParallel.forward": "FSDP1",
    "FullyShardedDataParallel._post_backward_hook": "FSDP1",
    "[pl][profile][Strategy]DDPStrategy.training_step": "Lightning",
}
FRAMES = {
    "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py(301): execute_model": "vLLM",
    "sglang/srt/managers/scheduler.py(812): run_batch": "SGLang",
    "/workspace/megatron/core/transformer/attention.py(431): forward": "Megatron-Core",
    "megatron/training/training.py(1203): train_step": "Megatron-Core",
    "deepspeed/runtime/engine.py(2053): backward": "DeepSpeed",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py(406): unshard": "FSDP2",
    "torchtitan/train.py(401): train_step": "FSDP2",
    "torch/distributed/fsdp/fully_sharded_data_parallel.py(838): forward": "FSDP1",
    "lightning/pytorch/loops/fit_loop.py(201): run": "Lightning",
    "/usr/lib/python3/site-packages/transformers/trainer.py(3741): training_step": "Transformers",
    "transformers/models/llama/modeling_llama.py(601): forward": "Transformers",
    "accelerate/optimizer.py(145): step": "Transformers",
    "nn.Module: LlamaForCausalLM_0": "Transformers",
    "nn.Module: BertForSequenceClassification_0": "Transformers",
}
NEAR = [
    "aten::mm",
    "my_vllm_wrapper",
    "/home/me/transformers/my_model.py(12): forward",
    "/home/me/vllm/benchmark.py(3): main",
    "/home/me/megatron/run.py(9): main",
    "/home/me/lightning/train.py(3): main",
    "train_deepspeed.py(12): main",
    "nn.Module: Linear_3",
    "nn.Module: MyModelForCausalLMWrapper_0",
    "DistributedDataParallel.forward",
    "Optimizer.step#AdamW.step",
    "MyFSDP::all_gather",
    "softmax",
    "ScaledSoftmaxLoss",
]


@pytest.mark.parametrize(("name", "framework"), OPS.items())
def test_an_op_shows_its_framework(name: str, framework: str) -> None:
    assert frameworks_of(trace(op(0, 10, name))) == (framework,)


@pytest.mark.parametrize(("name", "framework"), RANGES.items())
def test_a_range_shows_its_framework(name: str, framework: str) -> None:
    assert frameworks_of(trace(mark(0, 10, name))) == (framework,)


@pytest.mark.parametrize(("name", "framework"), FRAMES.items())
def test_a_python_frame_shows_its_framework(name: str, framework: str) -> None:
    assert frameworks_of(trace(mark(0, 10, name, kind="python"))) == (framework,)


@pytest.mark.parametrize("name", NEAR)
def test_other_names_show_plain_pytorch(name: str) -> None:
    assert frameworks_of(trace(mark(0, 10, name), op(20, 10, name))) == ()


def test_an_empty_trace_shows_plain_pytorch() -> None:
    assert frameworks_of(trace()) == ()


def test_several_frameworks_stand_in_order_the_most_specific_first() -> None:
    built = trace(
        mark(0, 10, "transformers/trainer.py(3741): training_step", kind="python"), mark(20, 5, "DeepSpeedEngine.step")
    )
    assert frameworks_of(built) == ("DeepSpeed", "Transformers")


# ---- the fix that a trace gets


def gathered(*marks: str) -> Run:
    """An exposed all-gather in a run that shows these names."""
    run = eight()
    with run.step():
        for name in marks:
            with run.range(name, "user_annotation"):
                run.host(1 * US)
        run.do(MATMUL)
        run.collective(work.collective("_allgather_base", 13_422_277, duration_ns=250 * US))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)
    return run


@pytest.mark.parametrize(
    ("marks", "framework", "name"),
    [
        ((), "PyTorch", "set_modules_to_forward_prefetch"),
        (("FSDP::all_gather (layers.0)",), "FSDP2", "--parallelism.fsdp_reshard_after_forward"),
        (("FullyShardedDataParallel.forward",), "FSDP1", "backward_prefetch"),
        (("forward_backward_no_pipelining",), "Megatron-Core", "--overlap-param-gather"),
        (("DeepSpeedEngine.forward",), "DeepSpeed", "stage3_prefetch_bucket_size"),
        (("DeepSpeedEngine.forward", "FSDP::all_gather (layers.0)"), "DeepSpeed", "stage3_prefetch_bucket_size"),
    ],
)
def test_the_fix_is_told_in_the_words_of_the_framework(marks: tuple[str, ...], framework: str, name: str) -> None:
    fix = findings(gathered(*marks))["exposed-communication"].fix
    assert fix is not None
    assert fix.framework == framework
    assert name in (fix.code or "")
