"""Families and types of kernels: real symbol names of every library, and what classify does to a trace."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.errors import UsageError
from trace_doctor.trace import ACTIVITIES, OPS, Meta, Trace
from trace_doctor.work.kernels import FAMILIES, TENSOR_FAMILIES, _built_in, by_name, by_op, classify, read, symbol

KERNELS = """
ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>) | communication
ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*) | communication
ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K) | communication
nccldevkernel_allreduce_sum_f32_ring_ll | communication
mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*) | communication
void mscclpp::allreduce_allpairs<__half>(__half*) | communication
void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*) | communication
void sglang::cross_device_reduce_1stage<half, 4>(sglang::RankData*) | communication
void aiter::cross_device_reduce_1stage<__hip_bfloat16, 8>(aiter::RankData*) | communication
void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*) | communication
void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*) | communication
void nvshmemi_proxy_quiet_entrypoint() | communication
multimem_all_reduce_kernel | communication
void c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long, int, int, unsigned long) | communication
void c10d::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**, unsigned long) | communication
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)1, __nv_bfloat16, 8>() | communication
void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true>(tensorrt_llm::AllReduceParams) | communication
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, all_reduce::Sum, unsigned int, float, 4> >() | reduction
void at::native::vectorized_elementwise_kernel<4, all_gather::Functor<float>, std::array<char*, 2ul> >() | elementwise
triton_poi_fused_add_all_gather_into_tensor_wait_tensor_3 | elementwise
_gemm_one_shot_all_reduce_kernel | gemm
nvjet_tst_128x160_64x5_2x4_v_bz_NTT | gemm | bf16
nvjet_sss_tf32_128x256_32x4_1x2_h_bz_TNT | gemm | tf32
nvjet_sm90_hss_320x128_64x3_1x2_h_bz_NTT | gemm | fp16
cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_align1_bias_f32_relu | gemm | fp32
nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN | gemm | fp16
nvjet_qqtst_192x192_128x4_1x2_h_bz_coopB_TNN | gemm | fp8
nvjet_rqsss_144x128_128x6_1x2_h_bz_coopA_algo2_TNN | gemm | fp8
nvjet_sm100_tst_128x256_64x6_2x1_2cta_h_bz_TNT | gemm | bf16
ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn | gemm | bf16
ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn | gemm | fp16
ampere_fp16_sgemm_fp16_32x128_tn | gemm | fp16
ampere_sgemm_128x64_nn | gemm | fp32
ampere_gcgemm_64x64_nt | gemm | fp32
volta_h884gemm_256x128_ldg8_nn | gemm | fp16
volta_dgemm_64x64_nn | gemm | fp64
sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel | gemm | fp16
sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_kernel__5x_cublas | gemm | tf32
sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x256x128_warpgroupsize2x1x1_bias_bf16_kernel__5x_cublas | gemm | fp8
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_kernel | gemm | fp32
void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>(cutlass_80_tensorop_s1688gemm_::Params) | gemm | tf32
void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_32x6_nt_align2>(cutlass_80_::Params) | gemm | bf16
void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params) | gemm | fp32
void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(cutlass_80_::Params) | gemm | fp64
void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x128_64x5_tn_align16>(cutlass_80_::Params) | gemm | int8
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>() | gemm | fp32
void gemvNSP_kernel<__half, __half, __half, float, 1, 32, 4, 1024, false>() | gemm | fp16
std::enable_if<true, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float>() | gemm | bf16
Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x64x64_MI16x16x1_SN_LDSB0 | gemm | bf16
Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0 | gemm | fp16
Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16_MI16x16x1_SN | gemm | fp32
Cijk_Alik_Bljk_F8BS_BH_Bias_SHB_HAS_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1_SN | gemm | fp8
Cijk_BBS_PostGSU2_VW4.kd | reduction
void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 128u, 56u, 128u, 1u, 8u, (deep_gemm::GemmType)0>(__nv_bfloat16*) | gemm | fp8
void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 64u, 160u, 128u, 32u, 4u, (deep_gemm::GemmType)2>() | grouped_gemm | fp8
_block_scaled_block_gemm | gemm
XXT_kernel | gemm
void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false>(int4 const*) | gemm | bf16
void tinygemm_m16n8k16_chunk_kernel<ALayout_RM<(KReductionType)0>, BLayout_TC_int4, __nv_bfloat16>() | gemm | bf16
void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*) | gemm | fp16
triton_tem_fused_addmm_gelu_4 | gemm
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false>() | reduction
void marlin_repack_kernel<256, 4, false>(unsigned int const*) | layout
void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*) | embedding
fused_moe_kernel | grouped_gemm
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int> > > > | grouped_gemm
_ZN5aiter31fmoe_bf16_pertokenFp8_g1u1_tkw1E | grouped_gemm | fp8
sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_kernel_cudnn | convolution | bf16
sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_kernel | convolution | tf32
void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816dgrad_optimized_f16_128x128_32x5_nhwc_align8>() | convolution | fp16
volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1 | convolution | fp32
volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1 | convolution | fp16
void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int) | convolution | fp32
void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int) | convolution | fp32
igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1_wr1x1_gkgs | convolution | bf16
_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm | convolution
void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>() | convolution | fp32
triton_tem_fused_convolution_0_0d1d2d | convolution
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams) | layout
void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true, (cudnnKernelDataType_t)0>() | layout
void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params) | layout
void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*) | layout
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t> >() | attention | bf16
void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, cutlass::half_t> >() | attention | fp16
void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::bfloat16_t> > > | attention | bf16
void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64> >, cutlass::bfloat16_t> > | reduction
void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<cute::tuple<cute::C<64> >, cutlass::bfloat16_t> > | layout
void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128> >(Flash_bwd_params) | reduction
fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>) | attention | bf16
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0 | attention | fp16
_attn_fwd | attention
_fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de11c12de13de14c15de16de17c | attention
_fwd_kernel_destindex_copy_kv | layout
void vllm::paged_attention_v2_kernel<__nv_bfloat16, unsigned char, 128, (vllm::Fp8KVCacheDataType)1>() | attention | bf16
void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>() | layout
void flashinfer::BatchPrefillWithPagedKVCacheKernel<(flashinfer::MaskMode)1, __nv_bfloat16>() | attention | bf16
_Z28flash_fwd_splitkv_mla_kernelI19FlashMlaKernelTraitILi576ELi512EEDF16_fLb1EEv17FlashMlaFwdParams | attention | fp16
_ZN5aiter24fmha_fwd_hd128_bf16_rtneE | attention | bf16
triton_tem_fused_flex_attention_backward_2 | attention
void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float) | normalisation
void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct) | normalisation
void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*) | normalisation
void cuApplyLayerNorm<c10::Half, float, c10::Half>(c10::Half*, float*) | normalisation
triton_red_fused_native_layer_norm_2 | normalisation
triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3 | normalisation
void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>() | softmax
triton_per_fused__softmax_4 | softmax
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >() | elementwise
void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>() | elementwise
_silu_and_mul_post_quant_kernel | elementwise
_rotary_kernel | elementwise
triton_poi_fused_add_mul_silu_1 | elementwise
triton__0d1d2d3d4de | elementwise
void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::MeanOps<c10::BFloat16> > >() | reduction
triton_per_fused__to_copy_mul_slice_sum_14 | reduction
void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int>, int*>(int*) | reduction
void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*) | reduction
void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>(int) | optimizer
void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpListAlphaFunctor<float> >() | optimizer
triton_for_fused_0 | optimizer
kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1> | optimizer
void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>() | loss
liger_cross_entropy_kernel | loss
triton_red_fused__log_softmax_mul_nll_loss_forward_sub_view_41 | loss
void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}> | loss
void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>() | embedding
void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float, float>() | embedding
void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl> >() | embedding
void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(float*) | layout
void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda> > | layout
SubTensorOpWithScalar1d | layout
void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<(unsigned int)4>, unsigned int>() | layout
void genericReformat::copyVectorizedKernel<double, __half, __half, (bool)1, (bool)0, (int)1>(unsigned int) | layout
void CUTENSOR_NAMESPACE::permutationKernelPLC3<CUTENSOR_NAMESPACE::VectorWrite2DTensorView<(unsigned char)0> >() | layout
void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float>(T1 *) | softmax
batched_transpose_32x32_half | layout
__amd_rocclr_copyBuffer | layout
_per_token_group_quant_fp8 | layout
triton_poi_fused__to_copy_permute_t_4 | layout
void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>() | random
void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long) | random
void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long> >() | sort
void vllm::moe::topkGatingSoftmax<8, 256, 4, 16, int>(float const*) | sort
void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>() | sort
my_secret_kernel(float*) | None
reallocate | None
"""
TABLE = [tuple(re.split(r" \| ", line)) for line in KERNELS.strip().splitlines()]


@cache
def classes() -> dict[str, tuple[str | None, str | None]]:
    """All names of the table and the examples, in one go as in a trace."""
    return classified([row[0] for row in TABLE] + [rule.example for rule in _built_in().rule])


def classified(names: list[str]) -> dict[str, tuple[str | None, str | None]]:
    return {name: (family, dtype) for name, family, dtype in by_name(pl.Series("name", names), _built_in()).rows()}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0][:60])
def test_kernel(row: tuple[str, ...]) -> None:
    name, family, dtype = (*row, "None")[:3]
    assert tuple(map(str, classes()[name])) == (family, dtype)


def test_every_family_has_a_kernel_in_the_table() -> None:
    assert {row[1] for row in TABLE} == {*FAMILIES, "None"} - {"unknown"}


def test_built_in_examples_match_their_own_rule() -> None:
    rules = _built_in()
    found = {rule.example: classes()[rule.example][0] for rule in rules.rule}
    assert found == {rule.example: rule.family for rule in rules.rule}
    assert all(rule.source for rule in rules.rule) and all(rule.source for rule in rules.dtype)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::(anonymous namespace)::f<a<b>, (c)0>(int)", "at::native::f"),
        ("void at::native::<unnamed>::f<(int)4, a<b>>(const T1 *)", "at::native::f"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(x)", "internal::gemvx::kernel"),
        ("_ZN2ck6device12_GLOBAL__N_14gemmINS_1aEEEvv", "ck::device::gemm"),
        ("_Z4gemmIfEvPT_", "gemm"),
        ("_Z", "_Z"),
        ("_Z9999999999999x", "_Z9999999999999x"),
        ("_attn_fwd_0d1d2de3c4", "_attn_fwd"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("Cijk_BBS_PostGSU2.kd [clone]", "Cijk_BBS_PostGSU2"),
        ("", ""),
    ],
)
def test_symbol(name: str, expected: str) -> None:
    assert symbol(name) == expected


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=300) | st.text("_ZN0123456789gemfloat<>:( ", max_size=40), min_size=1, max_size=30))
def test_any_name_is_read(names: list[str]) -> None:
    found = classified(names)
    assert set(found) == set(names)
    assert all(family is None or family in FAMILIES for family, _ in found.values())
    assert all(dtype is None or family in TENSOR_FAMILIES for family, dtype in found.values())


def test_only_the_beginning_of_a_name_is_examined() -> None:
    name = "x" * 5000 + "_gemm"
    assert classified([name]) == {name: (None, None)}


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("c10d::allreduce_", "communication"),
        ("symm_mem::one_shot_all_reduce", "communication"),
        ("nccl:_all_gather_base", "communication"),
        ("aten::mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("flash_attn_3::bwd", "attention"),
        ("aten::_grouped_mm", "grouped_gemm"),
        ("aten::convolution_backward", "convolution"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::view", None),
        (None, None),
    ],
)
def test_op(op: str | None, family: str | None) -> None:
    assert by_op(pl.Series("op_name", [op], dtype=pl.String), _built_in()).row(0) == (op, family)


def trace(*kernels: tuple[str, str | None], kind: str = "compute") -> Trace:
    """A trace whose kernels were launched by the ops given beside them."""
    ops = [op for _, op in kernels if op]
    activities = pl.DataFrame(
        {
            "activity": range(len(kernels)),
            "name": [name for name, _ in kernels],
            "kind": [kind] * len(kernels),
            "op": [ops.index(op) if op else None for _, op in kernels],
        },
        schema={column: ACTIVITIES[column].dtype for column in ("activity", "name", "kind", "op")},
    )
    frame = pl.DataFrame({"op": range(len(ops)), "name": ops}, schema={c: OPS[c].dtype for c in ("op", "name")})
    meta = Meta(path="t.json", format="kineto", size_bytes=0, sha256="")
    return replace(Trace(meta=meta, activities=activities), ops=frame)


def columns(found: Trace) -> list[tuple[object, ...]]:
    return found.activities.select("kind", "family", "tensor", "dtype").rows()


def test_classify_marks_kernels() -> None:
    found = classify(
        trace(("ampere_sgemm_128x64_nn", "aten::mm"), ("ncclDevKernel_Generic()", None), ("elephant", None))
    )
    assert columns(found) == [
        ("compute", "gemm", True, "fp32"),
        ("communication", "communication", False, None),
        ("compute", "unknown", False, None),
    ]


def test_names_win_over_ops() -> None:
    copy = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >()"
    found = classify(trace(("elephant", "c10d::allreduce_"), (copy, "c10d::allreduce_"), ("elephant", "aten::mm")))
    assert columns(found) == [
        ("communication", "communication", False, None),
        ("compute", "elementwise", False, None),
        ("compute", "gemm", True, None),
    ]


def test_copies_have_no_family() -> None:
    found = classify(trace(("Memcpy DtoD (Device -> Device)", "aten::copy_"), ("gemm", None), kind="copy"))
    assert columns(found) == [("copy", None, False, None)] * 2


def test_rows_and_columns_stay() -> None:
    before = trace(("b_gemm", None), ("a_gemm", "aten::mm"), ("b_gemm", "aten::mm"))
    after = classify(before).activities
    assert after.select("activity", "name", "op").equals(before.activities.select("activity", "name", "op"))
    assert after.columns == [*before.activities.columns, "dtype", "family", "tensor"]


def test_trace_without_kernels() -> None:
    assert columns(classify(trace())) == []


def test_own_patterns_come_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[rule]]\nfamily = "attention"\nsymbol = ["^ELEPHANT$"]\n'
        '[[rule]]\nfamily = "sort"\nname = ["ampere_sgemm"]\n'
        '[[dtype]]\ndtype = "fp8"\nname = ["elephant"]\n'
    )
    found = classify(trace(("elephant", None), ("ampere_sgemm_128x64_nn", None), ("nvjet_tst_1", None)), str(file))
    assert columns(found) == [
        ("compute", "attention", True, "fp8"),
        ("compute", "sort", False, None),
        ("compute", "gemm", True, "bf16"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        '[[rule]]\nfamily = "gem"\nsymbol = ["x"]\n',
        '[[rule]]\nfamily = "gemm"\nsymbol = ["(x"]\n',
        '[[rule]]\nfamily = "gemm"\nsymbol = ["(?!x)"]\n',
        '[[rule]]\nfamily = "gemm"\nsymbol = ["(?x)a # b"]\n',
        '[[rule]]\nfamily = "gemm"\nname = ["x{100000}{1000}"]\n',
        '[[rule]]\nfamily = "gemm"\nname = [' + ", ".join([r"'\w{100}'"] * 60) + "]\n",
        '[[rule]]\nfamily = "gemm"\nsymbols = ["x"]\n',
        '[[op]]\nfamily = "gemm"\nop = ["[["]\n',
        '[[dtype]]\ndtype = "bfloat16"\nname = ["x"]\n',
    ],
)
def test_bad_patterns_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read(str(file))
    assert refused.value.where == str(file)


def test_missing_patterns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(str(tmp_path / "none.toml"))
