"""Tests that `make test` leaves out: to CI, which runs the same command with CI=true, those that take seconds each; and
to `make test-long` those that take longest, mostly by waiting. Of these CI runs a part, another one each day,
where there is time; of those left to it every third, others each day.
"""

from collections.abc import Sequence

_BASELINES = ("adbs", "prefill_first", "static_split", "temporal")
_BESIDE_MUX = ("chunked_prefill", "duetserve", "muxwise")
_OTHER_SYSTEMS = ("bullet", "nanoflow", "nexus", "semi_pd", "tropical")
# Tests of every policy: on all forms of models and answers, and of its launches.
_EVERY_FORM = (
    "test_token_identity_of_formats.py::test_engine__any_policy_any_format__same_tokens[",
    "test_prompt_logprobs.py::test_engine__any_policy__prompts_are_as_probable_as_in_transformers[",
    "test_prompt_embeddings.py::test_engine__any_policy__embeddings_are_transformers[",
    "test_lora_identity.py::test_engine__any_policy__second_turns_too__match_peft[llama-",
)
_EVERY_LAUNCH = (
    "test_token_identity.py::test_engine__any_policy__same_tokens[",
    "test_decode_stretch.py::test_stretches__any_policy__same_decisions_and_tokens_to_the_byte[",
)

# Beginnings of ids, and what remains of it in `make test`.
LONG: Sequence[str] = (
    # Deadlines of Serve and of the engine's watch run out; the same parts are killed in `make test`.
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[unit_out_of_memory]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[telemetry_cut]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[engine_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[actor_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[controller_hung]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[two_units_killed]",
    "tests/chaos/test_chaos.py::test_sleeper__",
    # The same engine is killed for `muxfleet incident`, which asserts as much, and the control loop by test_fleet.py.
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[engine_killed]",
    "tests/chaos/test_chaos.py::test_fault__under_load__every_request_is_answered_once_with_its_tokens[controller_killed]",
    # The engine below them is killed in test_fleet.py, actors in test_chaos.py; another trace is replayed there.
    "tests/e2e/test_haproxy.py::test_haproxy__engine_killed_while_streaming__stream_goes_on",
    "tests/e2e/test_fleet.py::test_unit_killed__while_streaming__stream_goes_on_with_the_same_tokens[actor]",
    "tests/e2e/test_fleet.py::test_replay__first_200_requests_of_a_public_trace__are_all_answered[mooncake_conversation]",
    # Real engines, processes and SDKs: what they meet is in the gateway's and the units' own tests.
    "tests/clients/",
    "tests/deploy/test_simulated_scaling.py::test_pool__schedule__",
    "tests/deploy/test_simulated_scaling.py::test_pool__forecast_",
    "tests/deploy/test_prewarming.py::test_prewarming__second_season",
    "tests/chaos/test_poison_request.py",
    # Ray starts once more; real engines hand over to each other in test_hand_over_of_engines.py, fake ones die there.
    "tests/e2e/test_fleet_disaggregated.py",
    # Weights are fetched from the package index and converted; random ones say in every form what transformers says.
    "tests/pdmux_actor/test_trained_weights.py",
    # mypyc and a C compiler work for minutes; what finds and loads their libraries, and asks for them, stays.
    "tests/deploy/test_compiled_modules.py::test_compiled__",
    "tests/deploy/test_compiled_modules.py::test_engine_on_cores__run_by_compiled_program__says_what_it_says_as_python",
    "tests/deploy/test_compiled_modules.py::test_compare__in_processes_of_their_own__runs_what_is_compiled",
    # Ray starts six more times.
    "tests/e2e/test_serve_deploy.py",
    "tests/e2e/test_supervision.py",
    "tests/pdmux_actor/serving/test_actor.py",
    # Bodies by the hundred at every endpoint; single ones of each kind stay, and so do malformed ones.
    "tests/router/test_generated_requests.py",
    "tests/router/test_adversarial_bodies.py",
    # A copy of the tree and a wheel, used from processes of their own.
    "tests/test_extending.py",
    "tests/test_packages_of_others.py",
    # Triton compiles for GPUs that are not there; sm_80 stays.
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[89]",
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[90]",
    "tests/pdmux_actor/cuda/test_kernel_compilation.py::test_kernels__for_an_absent_gpu__compile_without_spills[100]",
    # Chromium before a real fleet; what the pages are told, and their files, stay.
    "tests/console/test_console_demo.py",
    # Chromium before units that only report, and before a gateway whose model loads; the same.
    "tests/console/test_console_simulated.py",
    "tests/console/test_console_waiting.py",
    # Benchmarks for GPUs, run to their end on the CPU.
    "tests/pdmux_actor/cuda/test_gpu_benchmarks.py",
    "tests/pdmux_actor/cuda/test_gpu_goodput.py",
    # Fleets whose parts have tests of their own: adapters and ranks in engines and units, the store in deploy/state.
    "tests/e2e/test_fleet_adapters.py",
    "tests/e2e/test_fleet_of_ranks.py",
    "tests/e2e/test_redis_state.py",
    # mux launches slices, fused and single steps; every policy's tokens, in one form, stay.
    *(f"tests/pdmux_actor/{test}{p}" for p in (*_BESIDE_MUX, *_BASELINES, *_OTHER_SYSTEMS) for test in _EVERY_FORM),
    "tests/pdmux_actor/test_structured_output.py::test_constrained__batched_under_any_policy_with_preemption__same_tokens[duetserve",
    "tests/pdmux_actor/test_structured_output.py::test_constrained__batched_under_any_policy_with_preemption__same_tokens[chunked_prefill",
    # One other baseline of the control loop stays.
    "tests/deploy/test_simulated_control.py::test_control_loop__baselines__every_request_is_answered_once[scratch]",
    *(f"tests/pdmux_actor/{test}{policy}" for policy in _OTHER_SYSTEMS for test in _EVERY_LAUNCH),
    # All of them, by turns in one engine, and adbs with lanes at once stay.
    *(f"tests/pdmux_actor/{_EVERY_LAUNCH[0]}{policy}" for policy in _BASELINES),
)

# Beginnings of ids, and what remains of it in `make test` without CI=true.
LEFT_TO_CI: Sequence[str] = (
    # Ray starts four times more, for faults under load and behind HAProxy; test_fleet.py kills engines.
    "tests/chaos/",
    "tests/e2e/test_haproxy.py",
    "tests/e2e/test_fleet.py::test_replay__first_200_requests_of_a_public_trace__are_all_answered[azure_2023_conv]",
    # Captures and memory of the CUDA executor on the CPU rig, and Triton; its tokens and graphs of decode stay.
    "tests/pdmux_actor/cuda/test_kernel_compilation.py",
    "tests/pdmux_actor/cuda/test_piece_captures.py",
    "tests/pdmux_actor/cuda/test_prefill_captures.py",
    "tests/pdmux_actor/cuda/test_early_steps_on_cuda.py",
    "tests/pdmux_actor/cuda/test_model_memory.py",
    "tests/pdmux_actor/cuda/test_lane_arenas.py",
    "tests/pdmux_actor/cuda/test_warm_variants.py",
    "tests/pdmux_actor/cuda/test_gaps_and_host_step.py",
    "tests/pdmux_actor/cuda/test_half_hour.py",
    # mux on other forms of models, and other policies' launches; mux's own, and all policies by turns, stay.
    *(f"tests/pdmux_actor/{test}" for test in _EVERY_FORM),
    *(f"tests/pdmux_actor/{_EVERY_LAUNCH[0]}{policy}" for policy in _BESIDE_MUX),
    "tests/pdmux_actor/test_token_identity.py::test_engine__second_turns_of_conversations__cache_hits_change_no_token",
    "tests/pdmux_actor/test_structured_output.py::test_constrained__batched_under_any_policy_with_preemption__same_tokens[",
    "tests/pdmux_actor/test_prompt_logprobs.py",
    "tests/pdmux_actor/test_prompt_embeddings.py",
    "tests/pdmux_actor/test_transformers_stored_formats.py",
    # Ranks that compute together; how they are cut and led is in test_rank_*.py.
    "tests/pdmux_actor/serving/test_rank_processes.py",
    "tests/pdmux_actor/serving/test_lost_device.py",
    "tests/pdmux_actor/test_tensor_parallel.py",
    "tests/pdmux_actor/test_ranks_with_adapters.py",
    # Whole commands, fleets in virtual time and processes that import Ray; the parts have tests of their own.
    "tests/deploy/test_profiled_plan.py",
    "tests/deploy/test_profile_from_run.py",
    "tests/deploy/test_profile_command.py",
    "tests/deploy/test_planner_process.py",
    "tests/deploy/test_replica_imports.py",
    "tests/deploy/test_open_cluster.py",
    "tests/deploy/test_spot_nodes.py",
    "tests/deploy/test_simulated_scaling.py",
    "tests/deploy/test_simulated_control.py",
    "tests/deploy/test_following_demand.py",
    "tests/deploy/test_paper_experiments.py",
    "tests/deploy/test_divided_run.py",
    "tests/deploy/test_led_run_ahead.py",
    # mux, adbs and chunked_prefill run ahead, and are slowed down by neighbours, each day.
    *(
        f"tests/{test}[{p}"
        for test in (
            "deploy/test_run_ahead.py::test_run_ahead__any_policy__same_decisions_tokens_and_reports_to_the_byte",
            "deploy/test_run_ahead.py::test_run_ahead__nobody_reads_accounts__same_outcomes_to_the_byte",
            "pdmux_actor/test_neighbour_slowdown.py::"
            "test_neighbour_slowdown__two_models_share_a_unit__about_what_running_alone_would_have_saved",
        )
        for p in (*_OTHER_SYSTEMS, "duetserve", "muxwise", *_BASELINES[1:])
    ),
    # Offenders of the same kinds with other rates, targets and lengths stay.
    *(
        f"tests/pdmux_actor/test_adversarial_slo.py::test_{offender}]"
        for offender in (
            "unattainable_tbt__one_request__costs_the_others_nothing[14.0",
            "unattainable_ttft__of_a_client__others_are_served_before_it[0.01",
            "zero_and_infinite_targets__scheduler_survives_and_others_lose_nothing[inf",
            "mixed_targets__a_model_with_unattainable_ones__the_other_model_loses_nothing[0.006",
            "header__one_clients_tight_target__costs_the_others_nothing[0.012",
            "flood_of_long_prompts__whatever_their_target__chats_lose_nothing[30.0",
            "long_prompts_among_chats__past_capacity__first_tokens_in_time_stay_level[10.0",
        )
    ),
    # deepseek_v3, flint, phimoe and others stay: experts, latent attention, windows, changed scores.
    *(
        f"tests/pdmux_actor/test_transformers_decoders.py::test_architecture__sliced_chunked_and_cached__says_what_transformers_says[{letter}"
        for letter in "abceghjklmnoqsvy"
    ),
    # Models by threes, so that a model's tests have one turn: they share what is written and known of it. llama and
    # gpt_oss stay with adapters, demo-qwen3 without.
    *(
        f"tests/pdmux_actor/test_lora_identity.py::test_{test}[{base}"
        for test in (
            "adapters__change_what_the_base_says",
            "prefill_and_decode__adapters_and_base_in_one_batch__match_peft",
            "chunked_prefill_fused_with_decode__adapters_and_base__match_peft",
            "adapters__come_and_go_while_others_decode__match_peft",
        )
        for base in ("qwen2", "qwen3", "mixtral")
    ),
    *(
        f"tests/pdmux_actor/test_greedy_identity.py::test_{test}__match_transformers[{model}"
        for test in (
            "whole_prefill_and_single_steps__any_batch",
            "layer_sliced_prefill_and_look_ahead__batch_of_17",
            "chunked_prefill_fused_with_decode__batch_of_17",
        )
        for model in ("demo-llama", "demo-qwen2")
    ),
    # In Triton's interpreter: models, adapters and ranks of other kinds are computed there each day.
    "tests/pdmux_actor/cuda/test_cuda_ranks.py::test_two_ranks__",
    "tests/pdmux_actor/cuda/test_cuda_adapters.py::test_adapters__sliced_chunked_and_captured_steps_beside__same_tokens_as_on_the_cpu[sampling0",
    *(
        f"tests/pdmux_actor/cuda/test_cuda_transformers_models.py::test_model__prompts_in_slices_steps_and_chunks__tokens_of_the_cpu[{m}"
        for m in ("olmo2", "gpt_neox", "deepseek_v2")
    ),
    # Processes whose memory grows with what oneDNN compiles; a checkpoint's own tokenizer stays.
    "tests/pdmux_actor/test_engine_environment.py",
    "tests/router/test_forms_of_a_simulated_unit.py::test_simulated_unit__forms_of_every_kind__are_followed[shape only",
    # Another fleet of each kind, drawn or laid out, stays.
    *(
        f"tests/placement/test_solvers.py::test_search__small_fleet__is_close_to_the_best_there_is[{n}"
        for n in range(1, 6)
    ),
    # One sweep and policies in processes, and units by turns under the search, stay; so do caches of other sizes.
    "tests/deploy/test_model_turns.py::test_turns__all_models_are_asked_for_all_the_time__nobody_is_refused[abcdefg-1-greedy",
    "tests/deploy/test_parallel_runs.py::test_simulate__in_three_processes__writes_what_one_writes[sweeps",
    "tests/deploy/test_model_turns.py::test_turns__all_models_are_asked_for_all_the_time__nobody_is_refused[abcdefghijkl-3-greedy",
    *(
        f"tests/pdmux_actor/test_prefix_cache.py::test_prefix_cache__mooncake_conversation__hits_equal_an_exact_lru[{n}"
        for n in ("3000]", "30000]")
    ),
    # The same turns with fewer or more models, and with loads that take as long, less or far longer, stay.
    *(
        f"tests/deploy/test_model_turns.py::test_turns__{turns}]"
        for turns in (
            "all_models_are_asked_for_all_the_time__nobody_is_refused[abcdefg-1-search",
            "loads_take_long__places_serve_and_do_not_only_load[1.0-0.9",
            "loads_take_long__places_serve_and_do_not_only_load[5.0-0.4",
            "loads_take_long__places_serve_and_do_not_only_load[15.0-0.15",
            "all_is_many_times_slower_than_units_tell__answers_come_to_their_ends[abc-10.0-0.75",
            "one_model_does_not_load__the_others_are_served_and_it_is_not_tried_all_the_time[1-greedy",
            "one_model_does_not_load__the_others_are_served_and_it_is_not_tried_all_the_time[2-search",
        )
    ),
    # mux, led by a control loop and by itself, adbs and units apart for prefill and decode stay.
    *(
        f"tests/deploy/test_any_fleet.py::test_fleet_run__anything_comes__each_request_ends_once_and_no_block_is_left[{mode}]"
        for mode in (*_BESIDE_MUX, *_BASELINES[1:], *_OTHER_SYSTEMS, "disaggregated, layerwise", "loongserve")
    ),
    # Rates of a trace without times, and one that is stopped early, stay.
    "tests/deploy/test_swept_requests.py::test_sweep__of_demand__every_rate_lasts_as_long",
    # Twice the capacity stays.
    "tests/pdmux_actor/test_decode_room.py::test_decode_bound__past_capacity__as_many_are_in_time_as_at_capacity[3.0]",
)


TURNS = 3
_PART = 3  # lines above: neighbours share fixtures


def is_long(nodeid: str) -> bool:
    return nodeid.startswith(tuple(LONG))


def is_left_to_ci(nodeid: str) -> bool:
    return nodeid.startswith(tuple(LEFT_TO_CI)) and not is_long(nodeid)


def is_all_among(path: str, beginnings: Sequence[str]) -> bool:
    """Says of a file or folder that all its tests have one of the beginnings."""
    whole = tuple(f"{beginning.removesuffix('/')}/" for beginning in beginnings if "::" not in beginning)
    return f"{path}/".startswith(whole)


def holds_long(path: str) -> bool:
    """Says of a file that it has some of the longest tests."""
    return is_all_among(path, LONG) or any(beginning.startswith(f"{path}::") for beginning in LONG)


def is_of_part(nodeid: str, number: int) -> bool:
    """Any number names a part: that of a day, for one."""
    first = number * _PART % (-(-len(LONG) // _PART) * _PART)
    return nodeid.startswith(tuple(LONG[first : first + _PART]))


def is_of_turn(nodeid: str, number: int) -> bool:
    """Says of a test that is left to CI whether it is run on a day of that number."""
    place = next(n for n, beginning in enumerate(LEFT_TO_CI) if nodeid.startswith(beginning))
    return place % TURNS == number % TURNS
