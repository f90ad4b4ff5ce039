//! vLLM's options, and the fate of each if an artifact runs. The plugin, `atomc check` and
//! docs/vllm.md read this table.
pub use crate::framework::{Fate, Judged, flag};
use crate::framework::{compared, list, refused, rows};

/// How vLLM may read a checkpoint: those of its loaders that hand out tensors by the names of the
/// checkpoint, ours, and the one that reads none.
const LOADERS: &[&str] = &[
    "auto",
    "hf",
    "safetensors",
    "pt",
    "npcache",
    "dummy",
    "fastsafetensors",
    "instanttensor",
    "runai_streamer",
    "atomc",
];

/// In the order in which they are judged. A bound on lengths is last: it follows from everything
/// else.
pub const JUDGED: &[Judged] = &[
    compared("runner", "model_config.runner_type", "`generate`"),
    refused(
        "convert",
        "model_config.convert",
        &["auto", "none"],
        "an artifact generates, and embeds or classifies nothing",
    ),
    refused(
        "model_impl",
        "model_config.model_impl",
        &["auto", "vllm"],
        "another implementation of the model would run, not the artifact",
    ),
    compared("dtype", "model_config.dtype", "the artifact's type (`atomc compile --dtype`)"),
    refused(
        "override_attention_dtype",
        "model_config.override_attention_dtype",
        &[],
        "attention is in the artifact's type",
    ),
    compared(
        "kv_cache_dtype",
        "cache_config.cache_dtype",
        "the type of the artifact's pages (`atomc compile --cache-dtype`)",
    ),
    refused(
        "kv_cache_dtype_skip_layers",
        "cache_config.kv_cache_dtype_skip_layers",
        &[],
        "the pages of all layers have one type",
    ),
    refused(
        "mamba_cache_dtype",
        "cache_config.mamba_cache_dtype",
        &["auto"],
        "what a convolution keeps is in the artifact's type",
    ),
    refused(
        "mamba_ssm_cache_dtype",
        "cache_config.mamba_ssm_cache_dtype",
        &["auto", "float32"],
        "recurrent states are in float32",
    ),
    refused(
        "calculate_kv_scales",
        "cache_config.calculate_kv_scales",
        &[],
        "scales of a cache are the checkpoint's, or 1",
    ),
    compared(
        "tensor_parallel_size",
        "parallel_config.tensor_parallel_size",
        "the artifact's ranks (`atomc compile --tp`)",
    ),
    refused("pipeline_parallel_size", "parallel_config.pipeline_parallel_size", &["1"], "an artifact is of all layers"),
    refused(
        "prefill_context_parallel_size",
        "parallel_config.prefill_context_parallel_size",
        &["1"],
        "a rank has the whole of a prompt",
    ),
    refused(
        "decode_context_parallel_size",
        "parallel_config.decode_context_parallel_size",
        &["1"],
        "a rank has all pages of a sequence",
    ),
    compared(
        "enable_expert_parallel",
        "parallel_config.enable_expert_parallel",
        "off, unless the artifact's ranks have whole experts (`atomc compile --ep`)",
    ),
    compared(
        "data_parallel_size",
        "parallel_config.data_parallel_size",
        "1 with `--enable-expert-parallel`: a step's rows stay with its ranks",
    ),
    refused("enable_eplb", "parallel_config.enable_eplb", &[], "experts stay where they are"),
    refused(
        "enable_return_routed_experts",
        // The second is where releases before 0.33 have it.
        "aux_output_config.enable_return_routed_experts|model_config.enable_return_routed_experts",
        &[],
        "which experts a token has chosen stays in the artifact",
    ),
    refused("enable_dbo", "parallel_config.enable_dbo", &[], "a step is one batch"),
    refused("ubatch_size", "parallel_config.ubatch_size", &["1"], "a step is one batch"),
    compared("quantization", "model_config.quantization", "the method of the artifact's checkpoint"),
    refused("quantization_config", "model_config.quantization_config", &[], "weights have the artifact's type"),
    refused(
        "load_format",
        "load_config.load_format",
        LOADERS,
        "its loader does not give tensors by the checkpoint's names",
    ),
    refused("enable_lora", "lora_config", &[], "weights are packed, without adapters"),
    compared(
        "speculative_config",
        "speculative_config",
        "none, or for the artifact's draft (`atomc compile --draft`): `mtp` or `eagle3`, and at most as many guesses as \
         `--speculate` says",
    ),
    refused("diffusion_config", "diffusion_config", &[], "a decode step has one token of each sequence"),
    refused("kv_offloading_size", "cache_config.kv_offloading_size", &[], "what is in a page is the artifact's own"),
    refused("kv_transfer_config", "kv_transfer_config", &[], "what is in a page is the artifact's own"),
    refused("ec_transfer_config", "ec_transfer_config", &[], "rows of images stay in the process that made them"),
    refused(
        "kv_sharing_fast_prefill",
        "cache_config.kv_sharing_fast_prefill",
        &[],
        "every layer has pages of its own, and a prompt goes through all",
    ),
    refused("cpu_offload_gb", "offload_config.uva.cpu_offload_gb", &[], "weights stay on the device"),
    refused("offload_group_size", "offload_config.prefetch.offload_group_size", &[], "weights stay on the device"),
    refused("offload_backend", "offload_config.offload_backend", &["auto"], "weights stay on the device"),
    refused(
        "attention_backend",
        "attention_config.backend",
        &[],
        "the artifact attends itself; ATOMC_ATTENTION=vllm lets vLLM's layer attend",
    ),
    refused("linear_backend", "kernel_config.linear_backend", &["auto"], "products are the artifact's"),
    refused("monokernel", "kernel_config.monokernel", &[], "kernels are the artifact's"),
    refused(
        "sleep_preserve_parameter_names",
        "model_config.sleep_preserve_parameter_names",
        &[],
        "an artifact has no parameters",
    ),
    compared(
        "enable_mm_embeds",
        "model_config.multimodal_config.enable_mm_embeds",
        "off, for models with other parts beside the language part",
    ),
    compared(
        "mm_processor_kwargs",
        "model_config.multimodal_config.mm_processor_kwargs",
        "images and frames of no more pixels than the artifact's tower takes, if it has one (`atomc compile --patches`)",
    ),
    compared(
        "video_pruning_rate",
        "model_config.multimodal_config.video_pruning_rate",
        "0, if the artifact has a tower: all of its rows are taken",
    ),
    compared(
        "mm_encoder_attn_dtype",
        "model_config.multimodal_config.mm_encoder_attn_dtype",
        "not given, if the artifact has a tower: its attention is in the artifact's type",
    ),
    compared(
        "mm_encoder_only",
        "model_config.multimodal_config.mm_encoder_only",
        "off, if the artifact has a tower: it is of the language part too",
    ),
    compared("block_size", "cache_config.block_size", "a multiple of the artifact's page, if it is given"),
    compared(
        "max_num_batched_tokens",
        "scheduler_config.max_num_batched_tokens",
        "the artifact's largest plan, if vLLM attends",
    ),
    compared(
        "max_model_len",
        "model_config.max_model_len",
        "the artifact's longest sequence (`atomc compile --context`)",
    ),
];

/// Whether vLLM's block size was asked for, in addition to [`JUDGED`]: vLLM sets one if it was not.
pub const BLOCK_SIZE_GIVEN: (&str, &str) = ("user_specified_block_size", "cache_config.user_specified_block_size");

/// Whether requests are text alone.
pub const TEXT_ALONE: (&str, &str) = ("language_model_only", "model_config.multimodal_config.language_model_only");

/// Spellings of options that are judged under another name.
pub const SPELLINGS: &[(&str, &str)] = &[
    ("attention_config", "attention_backend"),
    ("spec_method", "speculative_config"),
    ("spec_model", "speculative_config"),
    ("spec_tokens", "speculative_config"),
];

/// All others, and why nothing has to be looked at.
pub const OTHERS: &[(Fate, &str, &str)] = &[
    (
        Fate::Acts,
        "the configuration that vLLM resolves is what the artifact is compared with",
        "hf_overrides hf_config_path revision code_revision config_format trust_remote_code hf_token",
    ),
    (
        Fate::Acts,
        "names the artifact (key `artifact`), or is for another loader",
        "additional_config model_loader_extra_config",
    ),
    (
        Fate::Acts,
        "says where the model, its class or its weights are; vLLM reads them",
        "model model_weights model_class_overrides download_dir ignore_patterns pt_load_map_location \
         safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size \
         max_parallel_loading_workers use_tqdm_on_load",
    ),
    (
        Fate::Acts,
        "vLLM's tokens, prompts and answers",
        "served_model_name tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init enable_prompt_embeds \
         allowed_local_media_path allowed_media_domains generation_config override_generation_config max_logprobs \
         logprobs_mode logits_processors use_fp64_gumbel return_sampling_mask seed structured_outputs_config \
         reasoning_parser reasoning_parser_plugin reasoning_config io_processor_plugin renderer_num_workers tokens_only \
         stream_interval watermark_config enable_batch_sharded_sampling",
    ),
    (
        Fate::Acts,
        "vLLM's scheduler",
        "max_num_seqs max_num_active_seqs max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens \
         max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold \
         long_prefill_token_threshold_adaptive enable_chunked_prefill scheduler_reserve_full_isl \
         prefill_schedule_interval watermark scheduling_policy scheduler_cls async_scheduling performance_mode",
    ),
    (
        Fate::Acts,
        "vLLM's pages; what is in them is the artifact's",
        "enable_prefix_caching prefix_caching_hash_algo prefix_cache_retention_interval prefix_match_unit \
         gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override disable_hybrid_kv_cache_manager \
         disable_sliding_window kv_events_config mamba_block_size mamba_cache_mode",
    ),
    (
        Fate::Acts,
        "vLLM captures steps, on a GPU; it compiles nothing of ours",
        "enforce_eager compilation_config optimization_level cudagraph_capture_sizes max_cudagraph_capture_size",
    ),
    (
        Fate::Acts,
        "vLLM's processes and ranks",
        "distributed_executor_backend master_addr master_port nnodes node_rank distributed_timeout_seconds \
         cpu_distributed_timeout_seconds numa_bind numa_bind_nodes numa_bind_cpus device_ids \
         data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address \
         data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb \
         data_parallel_backend data_parallel_supervisor_port dp_supervisor_probe_failure_threshold \
         dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_sync_interval \
         disable_nccl_for_dp_synchronization disable_custom_all_reduce enable_nccl_comm_suspend ray_workers_use_nsight \
         worker_cls worker_extension_cls shutdown_timeout fault_tolerance_config enable_fault_tolerance watchdog_config \
         enable_shm_tensor_arena",
    ),
    (
        Fate::Acts,
        "sleep, and weights given anew",
        "enable_sleep_mode sleep_mode_backend sleep_mode_offload_cudagraph enable_cumem_allocator weight_transfer_config",
    ),
    (
        Fate::Acts,
        "vLLM's logs, metrics and checks",
        "disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version otlp_traces_endpoint \
         collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics kv_cache_metrics_sample \
         custom_histogram_buckets cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics \
         enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose profiler_config logging_config log_level \
         log_config_file enable_log_requests enable_trace_replay fail_on_environ_validation aux_output_config",
    ),
    (
        Fate::CannotMatter,
        "the artifact computes experts, where it was compiled to have them",
        "enable_ep_weight_filter moe_backend all2all_backend enable_elastic_ep elastic_ep_max_dp_size eplb_config \
         expert_placement_strategy enable_bf16x3_router_gemm",
    ),
    (
        Fate::Acts,
        "a model with other parts runs as an artifact without a tower with it, and as vLLM's own class without",
        "language_model_only",
    ),
    (
        Fate::Acts,
        "vLLM's images, for an artifact with a tower; without one the models take text alone",
        "limit_mm_per_prompt interleave_mm_strings media_io_kwargs skip_mm_profiling \
         disable_chunked_mm_input ec_manager_config enable_mm_processor_stats \
         mm_device_do_normalize mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb mm_processor_cache_type \
         mm_processor_device mm_shm_cache_max_object_size_mb mm_tensor_ipc",
    ),
    (Fate::CannotMatter, "a tower is the artifact's, on one device", "mm_encoder_attn_backend mm_encoder_tp_mode"),
    (
        Fate::CannotMatter,
        "the models have no layers of that kind",
        "engram_config enable_hc_sp swa_bounded_replay sparse_indexer_topk_backend gdn_prefill_backend \
         kda_prefill_backend kda_decode_backend replayssm_buffer_len use_replayssm enable_mamba_cache_stochastic_rounding \
         enable_mamba_shared_prefix_checkpoint enable_mamba_fine_grained_prefix_cache enable_flash_late_interaction \
         mamba_backend mamba_cache_philox_rounds mamba_config mamba_ssu_algorithm",
    ),
    (
        Fate::CannotMatter,
        "without effect unless its feature is on, which is refused",
        "video_pruning_method mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path \
         max_loras max_lora_rank default_mm_loras fully_sharded_loras max_cpu_loras lora_dtype lora_target_modules \
         enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras \
         max_lora_cls_labels dbo_decode_token_threshold dbo_prefill_token_threshold cpu_offload_params \
         offload_num_in_group offload_prefetch_step offload_params dcp_comm_backend dcp_q_replicate \
         dcp_kv_cache_interleave_size cp_kv_cache_interleave_size allow_deprecated_quantization kv_offloading_backend \
         pooler_config",
    ),
    (
        Fate::CannotMatter,
        "chooses among kernels of vLLM's that no artifact has",
        "disable_cascade_attn kernel_config ir_op_priority enable_flashinfer_autotune",
    ),
    (
        Fate::Acts,
        "vLLM's server",
        "allow_credentials allowed_headers allowed_methods allowed_origins anthropic_disabled_thinking_effort api_key \
         api_server_count chat_template chat_template_content_format cohere_format cohere_is_reasoning_model \
         default_chat_template_kwargs disable_access_log_for_endpoints disable_fastapi_docs disable_uvicorn_access_log \
         enable_auto_tool_choice enable_force_include_usage enable_log_deltas enable_log_outputs enable_offline_docs \
         enable_per_request_metrics enable_prompt_tokens_details enable_request_id_headers enable_scale_out \
         enable_server_load_tracking enable_ssl_refresh enable_tokenizer_info_endpoint \
         exclude_tools_when_tool_choice_none fingerprint_mode fingerprint_value grpc grpc_port h11_max_header_count \
         h11_max_incomplete_event_size headless host log_error_stack lora_modules max_log_len middleware port \
         reasoning_effort_map response_role return_tokens_as_token_ids root_path sse_keep_alive_interval ssl_ca_certs \
         ssl_cert_reqs ssl_certfile ssl_ciphers ssl_keyfile tool_call_parser tool_parser_plugin tool_server \
         tool_strict_level trust_request_chat_template trust_request_mm_kwargs uds uvicorn_log_level",
    ),
];

/// Short forms of vLLM's command line.
pub const SHORT: &[(&str, &str)] = &[
    ("tp", "tensor_parallel_size"),
    ("pp", "pipeline_parallel_size"),
    ("pcp", "prefill_context_parallel_size"),
    ("dcp", "decode_context_parallel_size"),
    ("q", "quantization"),
    ("sc", "speculative_config"),
    ("dc", "diffusion_config"),
    ("ac", "attention_config"),
    ("cc", "compilation_config"),
    ("ep", "enable_expert_parallel"),
    ("n", "nnodes"),
    ("r", "node_rank"),
    ("dp", "data_parallel_size"),
    ("dpn", "data_parallel_rank"),
    ("dpr", "data_parallel_start_rank"),
    ("dpl", "data_parallel_size_local"),
    ("dpa", "data_parallel_address"),
    ("dpp", "data_parallel_rpc_port"),
    ("dpb", "data_parallel_backend"),
    ("dph", "data_parallel_hybrid_lb"),
    ("dpe", "data_parallel_external_lb"),
    ("dpm", "data_parallel_multi_port_external_lb"),
];

/// Every option that the table knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    let others = OTHERS.iter().flat_map(|(_, _, names)| names.split(' '));
    JUDGED.iter().map(|judged| judged.name).chain(SPELLINGS.iter().map(|(name, _)| *name)).chain(others)
}

/// The table of docs/vllm.md: the compared options, the refused ones with reasons, then those that
/// are not looked at.
pub fn document() -> String {
    let mut text = rows(JUDGED);
    for (name, other) in SPELLINGS {
        text += &format!("| `{}` | as `{}` | where it says the same |\n", flag(name), flag(other));
    }
    text + &list(OTHERS)
}
