"""GPT training, op by op: the programs behind sample_traces/."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator import work
from tests.simulator.machine import COMMUNICATION, COMPUTE, US, Run
from tests.simulator.work import Op

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """A decoder-only transformer in BF16 and the batch it trains on."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    tokens: int
    has_flash: bool = True
    """Flash attention; else scores, softmax and dropout go through memory."""
    efficiency: float = 0.74
    """Share of the peak that its matmuls reach."""

    @property
    def rows(self) -> int:
        """Tokens of a step."""
        return self.batch * self.tokens

    @property
    def hidden(self) -> list[int]:
        """Shape of the residual stream."""
        return [self.batch, self.tokens, self.width]

    def weights(self) -> list[list[int]]:
        """Shapes of all parameters."""
        d = self.width
        block = [[d], [d], [3 * d, d], [3 * d], [d, d], [d], [d], [d], [4 * d, d], [4 * d], [d, 4 * d], [d]]
        return [[self.vocabulary, d], [self.tokens, d], *block * self.layers, [d], [d], [self.vocabulary, d]]

    def block_elements(self) -> int:
        """Parameters of one layer."""
        return 12 * self.width**2 + 13 * self.width


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What else the training loop does."""

    loading_ns: int = 150 * US
    pins_memory: bool = True
    bucket_rate: float | None = None
    """Bus bandwidth in B/s at which gradients are all-reduced over eight ranks, a layer a bucket; null: one rank."""
    reads_loss: bool = True


def train(run: Run, gpt: Gpt, habits: Habits, *, steps: int) -> None:
    """Some steps, and the wait at their end that stopping the profiler is."""
    run.host(400 * US)
    for _ in range(steps):
        with run.step():
            train_step(run, gpt, habits)
    run.synchronise()


def train_step(run: Run, gpt: Gpt, habits: Habits) -> None:
    """Load, forward, backward, optimizer, and a look at the loss."""
    with run.doing("input pipeline", LOADER):
        run.host(habits.loading_ns)
    with run.range("aten::to"):
        batch = work.copy("HtoD", 8 * gpt.rows, pinned=habits.pins_memory)
        run.launch(batch, blocking=not habits.pins_memory)
        if not habits.pins_memory:
            run.synchronise("cudaStreamSynchronize", COMPUTE)
    with run.range("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
        run.host(40 * US)
    forward(run, gpt)
    backward(run, gpt, habits)
    with run.range("Optimizer.step#AdamW.step", "user_annotation"):
        run.host(60 * US)
        run.do(work.adamw(gpt.weights()))
    if habits.reads_loss:
        run.item()


def linear(run: Run, gpt: Gpt, n: int, k: int) -> None:
    """A linear layer with bias on every token."""
    outer = Op(
        name="aten::linear",
        shapes=[[gpt.batch, gpt.tokens, k], [n, k], [n]],
        dtypes=[work.BF16] * 3,
    )
    run.do(work.addmm(gpt.rows, n, k, efficiency=gpt.efficiency).within(outer))


def forward(run: Run, gpt: Gpt) -> None:
    """Embedding, blocks, head, loss."""
    d = gpt.width
    run.do(work.embedding(gpt.vocabulary, d, gpt.rows))
    run.do(work.add(gpt.hidden))
    for _ in range(gpt.layers):
        run.do(work.layer_norm([gpt.batch, gpt.tokens], d))
        linear(run, gpt, 3 * d, d)
        attention(run, gpt)
        linear(run, gpt, d, d)
        run.do(work.add(gpt.hidden))
        run.do(work.layer_norm([gpt.batch, gpt.tokens], d))
        linear(run, gpt, 4 * d, d)
        run.do(work.gelu([gpt.batch, gpt.tokens, 4 * d]))
        linear(run, gpt, d, 4 * d)
        run.do(work.add(gpt.hidden))
    run.do(work.layer_norm([gpt.batch, gpt.tokens], d))
    run.do(work.mm(gpt.rows, gpt.vocabulary, d, efficiency=gpt.efficiency))
    run.do(work.log_softmax(gpt.rows, gpt.vocabulary))
    run.do(work.nll_loss(gpt.rows, gpt.vocabulary))


def attention(run: Run, gpt: Gpt) -> None:
    """Causal self-attention, fused or by parts."""
    each = gpt.width // gpt.heads
    if gpt.has_flash:
        run.do(work.flash_forward(gpt.batch, gpt.heads, gpt.tokens, each))
        return
    scores = [gpt.batch, gpt.heads, gpt.tokens, gpt.tokens]
    run.do(work.transpose(gpt.hidden))
    run.do(work.bmm(gpt.batch * gpt.heads, gpt.tokens, gpt.tokens, each))
    run.do(work.mul(scores))
    run.do(work.softmax(scores))
    run.do(work.dropout(scores))
    run.do(work.bmm(gpt.batch * gpt.heads, gpt.tokens, each, gpt.tokens))
    run.do(work.transpose(gpt.hidden))


def backward(run: Run, gpt: Gpt, habits: Habits) -> None:
    """The same the other way round, on autograd's thread; gradients are all-reduced a layer at a time."""
    d, rows = gpt.width, [gpt.batch, gpt.tokens]
    with run.backward("LogSoftmaxBackward0"):
        run.do(work.log_softmax_backward(gpt.rows, gpt.vocabulary))
    matmul_backward(run, gpt, "MmBackward0", gpt.vocabulary, d)
    with run.backward("NativeLayerNormBackward0"):
        run.do(work.layer_norm_backward(rows, d))
    for _ in range(gpt.layers):
        matmul_backward(run, gpt, "AddmmBackward0", d, 4 * d)
        with run.backward("GeluBackward0"):
            run.do(work.gelu_backward([*rows, 4 * d]))
        matmul_backward(run, gpt, "AddmmBackward0", 4 * d, d)
        with run.backward("NativeLayerNormBackward0"):
            run.do(work.layer_norm_backward(rows, d))
        matmul_backward(run, gpt, "AddmmBackward0", d, d)
        attention_backward(run, gpt)
        matmul_backward(run, gpt, "AddmmBackward0", 3 * d, d)
        with run.backward("NativeLayerNormBackward0"):
            run.do(work.layer_norm_backward(rows, d))
        if habits.bucket_rate:
            reduce_gradients(run, gpt.block_elements(), habits.bucket_rate)
    if habits.bucket_rate:
        reduce_gradients(run, 2 * gpt.vocabulary * d, habits.bucket_rate)
        run.order(COMPUTE, after=COMMUNICATION)


def matmul_backward(run: Run, gpt: Gpt, node: str, n: int, k: int) -> None:
    """Gradients of the input and the weight of a linear layer, and of its bias."""
    with run.backward(node):
        run.do(work.mm(gpt.rows, k, n, efficiency=gpt.efficiency))
        run.do(work.mm(n, k, gpt.rows, efficiency=gpt.efficiency))
        if node == "AddmmBackward0":
            run.do(work.total(gpt.rows, n))


def attention_backward(run: Run, gpt: Gpt) -> None:
    """Of the attention, fused or by parts."""
    each, heads = gpt.width // gpt.heads, gpt.batch * gpt.heads
    if gpt.has_flash:
        with run.backward("ScaledDotProductFlashAttentionBackward0"):
            run.do(work.flash_backward(gpt.batch, gpt.heads, gpt.tokens, each))
        return
    scores = [gpt.batch, gpt.heads, gpt.tokens, gpt.tokens]
    for node, ops in (
        (
            "BmmBackward0",
            [work.bmm(heads, gpt.tokens, gpt.tokens, each), work.bmm(heads, gpt.tokens, each, gpt.tokens)],
        ),
        ("NativeDropoutBackward0", [work.mul(scores)]),
        ("SoftmaxBackward0", [work.softmax_backward(scores)]),
        ("MulBackward0", [work.mul(scores)]),
        (
            "BmmBackward0",
            [work.bmm(heads, gpt.tokens, each, gpt.tokens), work.bmm(heads, gpt.tokens, each, gpt.tokens)],
        ),
        ("CloneBackward0", [work.transpose(gpt.hidden)]),
    ):
        with run.backward(node):
            for op in ops:
                run.do(op)


def reduce_gradients(run: Run, elements: int, rate: float) -> None:
    """One bucket of DistributedDataParallel, from autograd's thread."""
    duration_ns = 20 * US + round(1e9 * 2 * elements * 2 * 7 / 8 / rate)
    with run.backward("torch::autograd::AccumulateGrad"):
        run.collective(work.collective("allreduce", elements, duration_ns=duration_ns))
