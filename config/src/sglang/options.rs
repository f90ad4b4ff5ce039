//! SGLang's options other than the judged ones, and why nothing has to be checked.
use super::JUDGED;
use crate::framework::{Fate, list, rows};

pub const OTHERS: &[(Fate, &str, &str)] = &[
    (
        Fate::Acts,
        "says where the model and its weights are; SGLang reads them",
        "model_path model_loader_extra_config trust_remote_code revision model_impl model_config_parser \
         json_model_override_args weight_loader_disable_mmap weight_loader_prefetch_checkpoints \
         weight_loader_prefetch_num_threads weight_loader_drop_cache_after_load \
         remote_instance_weight_loader_seed_instance_ip \
         remote_instance_weight_loader_seed_instance_service_port \
         remote_instance_weight_loader_send_weights_group_ports remote_instance_weight_loader_backend \
         remote_instance_weight_loader_start_seed_via_transfer_engine engine_info_bootstrap_port \
         modelexpress_config download_dir model_checksum delete_ckpt_after_loading decrypted_config_file \
         decrypted_draft_config_file checkpoint_engine_wait_weights_before_ready weight_cache_socket \
         weight_cache_timeout qsa_indexer_dtype",
    ),
    (
        Fate::Acts,
        "SGLang's tokens, prompts, answers and server",
        "tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num \
         skip_tokenizer_init host port fastapi_root_path smg_grpc_mode grpc_mode grpc_port sidecar \
         sidecar_args skip_server_warmup warmups enable_http2 http2_max_concurrent_streams \
         http2_initial_connection_window_size ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password \
         enable_ssl_refresh api_key admin_api_key served_model_name weight_version chat_template \
         trust_request_chat_template hf_chat_template_name completion_template file_storage_path \
         enable_cache_report return_input_ids return_output_ids default_chat_template_kwargs \
         strip_thinking_cache enable_strict_thinking tool_server sampling_defaults asr_max_buffer_seconds \
         asr_max_concurrent_sessions preferred_sampling_params allow_auto_truncate stream_interval \
         batch_notify_size stream_response_default_include_usage incremental_streaming_output \
         enable_streaming_session constrained_json_whitespace_pattern \
         constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt \
         enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size \
         dynamic_batch_tokenizer_batch_timeout enable_tokenizer_batch_encode \
         disable_tokenizer_batch_decode enable_response_store grpc_response_timeout_secs \
         enable_http_worker_reuseport reasoning_parser tool_call_parser",
    ),
    (
        Fate::Acts,
        "SGLang's scheduler",
        "mem_fraction_static max_running_requests max_queued_requests max_total_tokens \
         chunked_prefill_size prefill_decode_interval enable_dynamic_chunking max_prefill_tokens \
         prefill_max_requests schedule_policy enable_priority_scheduling disable_priority_preemption \
         default_priority_value abort_on_priority_when_disabled schedule_low_priority_values_first \
         priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness \
         c128_page_size swa_full_tokens_ratio disable_hybrid_swa_memory disable_chunked_prefix_cache \
         disable_overlap_schedule num_continuous_decode_steps scheduler_recv_interval enable_mixed_chunk \
         max_mamba_cache_size mamba_full_memory_ratio enable_prefill_delayer \
         prefill_delayer_max_delay_passes prefill_delayer_token_usage_low_watermark \
         prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets \
         prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms min_free_slots_delay \
         swa_prefix_tails prefill_decode_interval_min_bs",
    ),
    (
        Fate::Acts,
        "SGLang's pages and radix cache; what is in a page is the artifact's",
        "radix_eviction_policy radix_eviction_policy_config \
         enable_session_radix_cache radix_cache_backend hicache_host_memory_mode hicache_ratio \
         hicache_size hicache_write_policy hicache_io_backend hicache_mem_layout hicache_storage_backend \
         hicache_storage_prefetch_policy hicache_storage_backend_extra_config \
         hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts \
         unified_cache_external_linker_backend hisparse_config lmcache_config_file flexkv_config_file \
         hicache_host_memory_fraction enable_linker_mla_dedup unified_cache_external_linker_config",
    ),
    (
        Fate::Acts,
        "SGLang's processes and ranks",
        "nccl_port dist_timeout dist_init_addr gated_launch_port nnodes node_rank pp_max_micro_batch_size \
         pp_async_batch_depth dp_size load_balance_method dcp_comm_backend dcp_replicate_q_proj \
         cp_strategy enable_dsa_cache_layer_split enable_cp_decode_attn_tp \
         enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_tp_lm_head_all_to_all \
         enable_attn_tp_input_scattered enable_shared_experts_attn_tp shared_experts_tp_size \
         enable_dense_mlp_attn_tp disable_attn_tp_gather enable_p2p_check device base_gpu_id gpu_id_step \
         random_seed mlx_enable_sampling watchdog_timeout soft_watchdog_timeout sleep_on_idle use_ray \
         numa_node gc_threshold enable_layerwise_nvtx_marker enable_nccl_nvls enable_symm_mem \
         disable_custom_all_reduce enable_mscclpp enable_torch_symm_mem enable_scattered_sconv \
         pre_warm_nccl boundary_reduction enable_quant_communications \
         enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend \
         enable_aiter_allreduce_fusion ep_join_rank_offset elastic_ep_initial_size max_ep_size \
         disable_aiter_allreduce_fusion_in_prefill disable_aiter_allreduce_fusion_in_decode \
         enable_megamoe_for_layernorm_sp enable_dp_attention enable_flashinfer_allreduce_fusion",
    ),
    (
        Fate::Acts,
        "SGLang captures steps, on a GPU; it compiles nothing of ours",
        "cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_max_bs_decode \
         cuda_graph_max_bs_prefill cuda_graph_bs_decode cuda_graph_bs_prefill \
         cuda_graph_prefill_max_context disable_prefill_cuda_graph disable_decode_cuda_graph \
         disable_cuda_graph_padding enable_profile_cuda_graph enable_cudagraph_gc debug_cuda_graph \
         enable_torch_compile_debug_mode torch_compile_max_bs cuda_graph_max_seq_len_prefill \
         disable_cuda_graph",
    ),
    (
        Fate::Acts,
        "SGLang's memory of weights, and what it hands out with answers",
        "enable_tf32_matmul enable_memory_saver enable_weights_cpu_backup \
         enable_draft_weights_cpu_backup enable_custom_logit_processor enable_return_indexer_topk \
         sampling_mask_max_tokens disable_outlines_disk_cache enable_encoder_swa_bounded_replay \
         enable_decoder_swa_bounded_replay enable_watermark watermark_config \
         return_aux_hidden_state_layer_ids",
    ),
    (
        Fate::Acts,
        "SGLang's logs, metrics and checks",
        "log_level log_level_http log_requests log_requests_level log_requests_format log_requests_target \
         uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics \
         smg_http_sidecar_port enable_mfu_metrics enable_metrics_for_all_schedulers \
         load_snapshot_publish_interval tokenizer_metrics_custom_labels_header \
         tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token \
         bucket_inter_token_latency bucket_e2e_request_latency prompt_tokens_buckets \
         generation_tokens_buckets gc_warning_threshold_secs decode_log_interval \
         enable_request_time_stats_logging kv_events_config load_publish_endpoint \
         enable_forward_pass_metrics forward_pass_metrics_worker_id forward_pass_metrics_ipc_name \
         enable_trace trace_modules otlp_traces_endpoint export_metrics_to_file \
         export_metrics_to_file_dir kv_canary_sweep_interval debug_tensor_dump_layers \
         debug_tensor_dump_input_file otlp_service_name kv_canary_real_data",
    ),
    (
        Fate::CannotMatter,
        "chooses among kernels of SGLang's that no artifact has",
        "attention_backend decode_attention_backend enable_lean_attention prefill_attention_backend \
         grammar_backend fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend \
         dsa_prefill_backend dsv4_prefill_backend dsa_decode_backend dsa_paged_mqa_logits_backend \
         dsa_topk_backend disable_flashinfer_autotune flashinfer_autotune_skip_ops \
         triton_attention_reduce_in_fp32 triton_attention_num_kv_splits triton_attention_split_tile_size \
         flashinfer_mla_disable_ragged enable_fused_qk_norm_rope enable_precise_embedding_interpolation \
         enable_deepseek_v4_fp4_indexer prefill_kv_cache_dequant_dtype dsv4_attn_backend dsa_triton_union \
         enable_dsa_fused_indexer sampling_backend",
    ),
    (
        Fate::CannotMatter,
        "the artifact computes experts, where it was compiled to have them",
        "enable_fused_moe_sum_all_reduce enable_w4a4_mxfp4_megamoe deepep_v2_mode moe_runner_backend \
         flashinfer_mxfp4_moe_precision deepep_mode fuseep_mode deepep_dispatcher_output_dtype \
         ep_dispatch_algorithm eplb_algorithm eplb_rebalance_num_iterations \
         eplb_rebalance_layers_per_chunk eplb_min_rebalancing_utilization_threshold \
         expert_distribution_recorder_buffer_size expert_balancedness_report_mode deepep_config \
         mooncake_ib_device ep_join_mode elastic_ep_scale_timeout \
         disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion \
         enforce_shared_experts_fusion kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts \
         kt_max_deferred_experts_per_token flashinfer_a2a_dispatch_type paged_experts_num_resident",
    ),
    (
        Fate::Acts,
        "which states SGLang keeps for other requests to begin with",
        "mamba_radix_cache_strategy mamba_track_interval mamba_max_states_per_path",
    ),
    (
        Fate::Acts,
        "a model with other parts beside the artifact's runs as the artifact if they say that requests are text alone, \
         and as SGLang's own class else",
        "language_model_only enable_multimodal",
    ),
    (
        Fate::CannotMatter,
        "the models take text alone",
        "mm_attention_backend enable_broadcast_mm_inputs_process enable_prefix_mm_cache \
         mm_enable_dp_encoder mm_process_config mm_processor_worker_num mm_io_worker_num \
         allowed_media_domains media_url_max_file_size_mb mm_preprocess_cache_size_mb \
         trust_mm_content_hashes limit_mm_data_per_request enable_mm_global_cache image_processor_backend \
         mm_global_cache_backend disable_fast_image_processor mm_feature_transport",
    ),
    (
        Fate::CannotMatter,
        "the models have no layers of that kind",
        "mamba_backend enable_mamba_cache_stochastic_rounding \
         mamba_cache_philox_rounds int8_mamba_ckpt_size linear_attn_backend linear_attn_decode_backend \
         linear_attn_prefill_backend linear_attn_verify_backend enable_linear_replayssm \
         linear_replayssm_cache_len enable_linear_replayssm_spec",
    ),
    (
        Fate::Acts,
        "which guesses SGLang keeps, and where the checkpoint of a draft lies",
        "speculative_num_draft_tokens speculative_accept_threshold_single \
         speculative_accept_threshold_acc speculative_use_rejection_sampling \
         speculative_use_block_verification speculative_draft_model_revision",
    ),
    (
        Fate::CannotMatter,
        "chooses among kernels of a draft of SGLang's own",
        "speculative_attention_mode speculative_draft_attention_backend \
         speculative_moe_runner_backend speculative_moe_a2a_backend \
         speculative_draft_model_quantization speculative_enable_w4a4_mxfp4_megamoe \
         speculative_dsa_topk_backend",
    ),
    (
        Fate::CannotMatter,
        "without effect unless its feature is on, which is refused",
        "uno_lora_path speculative_dflash_block_size speculative_dspark_block_size \
         speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path \
         speculative_dspark_align_verify_tokens_to_graph_tier speculative_adaptive_config \
         decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank \
         decoupled_spec_role spec_trace_dir speculative_ngram_min_bfs_breadth \
         speculative_ngram_max_bfs_breadth speculative_ngram_match_type \
         speculative_ngram_max_trie_depth speculative_ngram_capacity \
         speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget \
         speculative_ngram_external_corpus_max_tokens enable_lora_overlap_loading max_lora_rank \
         lora_target_modules max_loaded_loras max_loras_per_batch lora_eviction_policy lora_backend \
         max_lora_chunk_size experts_shared_outer_loras lora_use_virtual_experts lora_strict_loading \
         lora_drain_wait_threshold tbo_token_distribution_threshold offload_num_in_group \
         offload_prefetch_step offload_mode dllm_algorithm_config dllm_fdfo \
         disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_ib_device \
         disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache \
         disaggregation_decode_retraction_backup num_reserved_decode_tokens \
         disaggregation_decode_extra_slots disaggregation_decode_polling_interval \
         optimistic_prefill_attempts encoder_only language_only encoder_transfer_backend encoder_urls \
         encoder_bootstrap_port encoder_register_urls enable_adaptive_dispatch_to_encoder \
         pdmux_config_path sm_group_num ple_offload_backend ple_offload_dir \
         disaggregation_enable_kv_checksum enable_pd_role_switch \
         speculative_domino_candidate_pool_size disaggregation_decode_host_receive_threshold \
         disaggregation_decode_allocation_policy",
    ),
];

/// Other spellings of SGLang's command line.
pub const SHORT: &[(&str, &str)] = &[
    ("model", "model_path"),
    ("nccl_init_addr", "dist_init_addr"),
    ("tensor_parallel_size", "tp_size"),
    ("decode_context_parallel_size", "dcp_size"),
    ("pipeline_parallel_size", "pp_size"),
    ("data_parallel_size", "dp_size"),
    ("attention_data_parallel_size", "attn_dp_size"),
    ("attention_context_parallel_size", "attn_cp_size"),
    ("moe_data_parallel_size", "moe_dp_size"),
    ("grpc_http_sidecar_port", "smg_http_sidecar_port"),
    ("fp8_gemm_backend", "fp8_gemm_runner_backend"),
    ("fp4_gemm_backend", "fp4_gemm_runner_backend"),
    ("context_bucket", "cuda_graph_prefill_max_context"),
    ("speculative_draft_model", "speculative_draft_model_path"),
    ("expert_parallel_size", "ep_size"),
    ("ep", "ep_size"),
    ("elastic_ep_join_mode", "ep_join_mode"),
    ("elastic_ep_join_rank_offset", "ep_join_rank_offset"),
    ("enable_hicache", "enable_hierarchical_cache"),
    ("hierarchical_sparse_attention_extra_config", "hisparse_config"),
    ("monokernel_backend", "enable_amd_monokernel"),
    ("tp", "tp_size"),
    ("dp", "dp_size"),
    ("pp", "pp_size"),
];

/// Every option that the table knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    JUDGED.iter().map(|judged| judged.name).chain(OTHERS.iter().flat_map(|(_, _, names)| names.split(' ')))
}

/// The table of docs/sglang.md: the compared options, the refused ones with reasons, then those
/// that are not looked at.
pub fn document() -> String {
    rows(JUDGED) + &list(OTHERS)
}
