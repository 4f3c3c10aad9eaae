"""Every name of torch_xla that users import is there, with the parameters it had."""

import importlib
import inspect

import pytest

# module: names, with the parameters in order where they are called with them.
FACE = {
    "torch_xla": """
        device(index) devices() device_count() real_devices() sync(wait,reset_scope) step()
        compile(f,full_graph,name,max_different_graphs,custom_compile_options)
        manual_seed(seed,device) launch(fn,args,start_method,debug_single_process)
        runtime tpu _XLAC __version__""",
    "torch_xla.core.xla_model": """
        REDUCE_SUM REDUCE_MUL REDUCE_AND REDUCE_OR REDUCE_MIN REDUCE_MAX
        xla_device(n,devkind) get_xla_supported_devices(places,max_devices,devkind)
        xla_real_devices(devices) xla_device_hw(device) xla_device_kind(device)
        xla_replication_devices(local_devices) set_replication(device,devices) is_xla_tensor(tensor)
        unlazy(tensors) get_local_ordinal(defval) get_ordinal(defval) xrt_world_size(defval)
        is_master_ordinal(local) master_print(args,fd,local,flush) RateTracker(smooth_factor)
        ToXlaTensorArena(convert_fn,select_fn) check_view_sharing(obj)
        all_reduce(reduce_type,inputs,scale,groups,pin_layout)
        all_gather(value,dim,groups,output,pin_layout)
        all_gather_bucketized(input_list,dim,groups,output,pin_layout,bucket_cap_mb)
        all_to_all(value,split_dimension,concat_dimension,split_count,groups,pin_layout)
        collective_permute(value,pairs)
        collective_broadcast(tensors,root_ordinal,groups,pin_layout) broadcast_master_param(model)
        reduce_scatter(reduce_type,input,scale,scatter_dim,shard_count,groups,output,pin_layout)
        send(value,channel_id) recv(output,channel_id) add_step_closure(closure,args,run_async)
        mark_step(wait,reset_scope) wait_device_ops(devices)
        reduce_gradients(optimizer,groups,pin_layout)
        all_reduce_bucketized_gradients(gradients,scale,groups,pin_layout,bucket_cap_mb)
        optimizer_step(optimizer,barrier,optimizer_args,groups,pin_layout)
        save(data,file_or_path,master_only,global_master)
        send_cpu_data_to_device(datas,device,input_sharding) rendezvous(tag,payload,replicas)
        xla_rendezvous(payload,ordinals,tag) do_on_ordinals(target,data,ordinals)
        mesh_reduce(tag,data,reduce_fn) set_rng_state(seed,device) get_rng_state(device)
        fork_rng(device,enabled) get_memory_info(device) get_stablehlo(tensors)
        get_stablehlo_bytecode(tensors) optimization_barrier_(tensors) parse_xla_device(device)
        _fetch_gradients(optimizer) _maybe_convert_to_cpu(data,convert)""",
    "torch_xla.core.functions": """
        all_reduce(reduce_type,value,scale,groups) all_gather(value,dim)
        nms(boxes,scores,score_threshold,iou_threshold,output_size) distributed_mm(w,x,split)
        SyncBatchNorm(num_features,eps,momentum)""",
    "torch_xla.core.xla_builder": "call_jax(jax_func,args,kwargs,name,override_hash)",
    "torch_xla.experimental.scan": "scan(fn,init,xs)",
    "torch_xla.experimental.fori_loop": "fori_loop(lower,upper,body_fun) while_loop",
    "torch_xla.core.xla_env_vars": "PJRT_DEVICE WORLD_SIZE ORDINAL TPU_CONFIG",
    "torch_xla.core.dynamo_bridge": "extract_compiled_graph(xla_model,xla_args)",
    "torch_xla.runtime": """
        device_type() set_device_type(pjrt_device) world_size() global_ordinal() local_ordinal()
        global_device_count() local_device_count() addressable_device_count() local_process_count()
        process_index() process_count() host_index() global_runtime_device_count()
        addressable_runtime_device_count() runtime_device_attributes(device)
        global_runtime_device_attributes() use_spmd is_spmd() get_master_ip()
        initialize_cache(path,readonly) get_num_cached_compilation_graph() is_bf16_supported()""",
    "torch_xla.backends": "set_mat_mul_precision(precision) get_mat_mul_precision()",
    "torch_xla.distributed.xla_multiprocessing": """
        spawn(fn,args,nprocs,join,daemon,start_method) MpModelWrapper(model) MpSerialExecutor()""",
    "torch_xla.distributed.parallel_loader": """
        ParallelLoader(cpu_loader,devices,batchdim,batches_per_execution,loader_prefetch_size)
        MpDeviceLoader(loader,device) PerDeviceLoader PerDeviceQueue""",
    "torch_xla.distributed.fsdp": """
        XlaFullyShardedDataParallel(module,reshard_after_forward,flatten_parameters)
        FSDP(module) checkpoint_module(module)
        consolidate_sharded_state_dicts(state_dict_list,shard_metadata)
        consolidate_sharded_model_checkpoints(ckpt_prefix,ckpt_suffix,save_path,save_model)""",
    "torch_xla.distributed.fsdp.wrap": """
        always_wrap_policy lambda_auto_wrap_policy(module,recurse,unwrapped_params,lambda_fn)
        transformer_auto_wrap_policy(module,recurse,unwrapped_params,transformer_layer_cls)
        size_based_auto_wrap_policy(module,recurse,unwrapped_params,min_num_params)
        recursive_wrap(module,auto_wrap_policy,wrapper_cls,ignored_modules,ignored_params)""",
    "torch_xla.distributed.fsdp.state_dict_utils": "consolidate_sharded_model_checkpoints",
    "torch_xla.distributed.fsdp.consolidate_sharded_ckpts": "main",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel": "XlaFullyShardedDataParallel",
    "torch_xla.distributed.fsdp.xla_flatten_params_wrapper": "XlaFlattenParamsWrapper(module)",
    "torch_xla.distributed.fsdp.utils": "checkpoint_module(module)",
    "torch_xla.distributed.data_parallel": "DataParallel(network,device_ids) Context(device)",
    "torch_xla.debug.metrics": """
        metrics_report() short_metrics_report(counter_names,metric_names) counter_names()
        counter_value(name) clear_counters() metric_names() metric_data(name) clear_metrics()
        clear_all() executed_fallback_ops()""",
    "torch_xla.debug.profiler": """
        start_server(port,only_on_master) start_trace(log_dir) stop_trace()
        trace(service_addr,logdir,duration_ms,num_tracing_attempts,host_tracer_level) trace_detached
        Trace(name) StepTrace(name,step_num) trace_me(scope)
        get_tracer_marked_step() set_tracer_marked_step(value)""",
    "torch_xla.debug.frame_parser_util": """
        create_report(frames) parse_frame_content(line) parse_frames(lines)
        process_frames(fname)""",
    "torch_xla.debug.graph_saver": "save_tensors_graph(save_dir,name,tensors)",
    "torch_xla.debug.metrics_saver": "save_metrics(metrics_file)",
    "torch_xla.debug.metrics_compare_utils": """
        parse_metrics_report(report,dehumanize) get_data_points_from_metrics_reports
        compare_metrics(data_points,metrics_report,config)""",
    "torch_xla.debug.model_comparator": """
        configure save(name,tensor,step) compare(save_dir1,save_dir2,rtol,atol,max_diffs)
        tensor_file_compare compare_tensors""",
    "torch_xla.utils.serialization": "save(data,path,master_only,global_master) load(path)",
    "torch_xla.utils.checkpoint": "checkpoint(function,args,use_reentrant,preserve_rng_state)",
    "torch_xla.utils.utils": """
        SampleGenerator(data,sample_count) FnDataGenerator(func,batch_size,gen_tensor,dims,count)
        DataWrapper getenv_as(name,type,defval) for_each_instance(value,select_fn,fn)
        for_each_instance_rewrite(value,select_fn,fn) TimedScope timed TmpFolder
        get_free_tcp_ports(n) parallel_work(num_workers,fn) check_env_flag(name,default)
        LazyProperty(gen_fn) Cleaner(func) as_list shape flatten_nested_tuple list_copy_append
        null_print eprint get_print_fn""",
    "torch_xla.utils.closures": "AsyncClosureHandler(max_queue_size) ClosureHandler",
    "torch_xla.utils.keyd_queue": "KeydQueue(maxsize) Queue(maxsize)",
    "torch_xla.utils.dlpack": "to_dlpack from_dlpack",
    "torch_xla.utils.gcsfs": """
        open(path,mode,encoding) list(path) stat remove rmtree read write(path,content) generic_open
        generic_read(path) generic_write(output_string,path,makedirs) generic_glob is_gcs_path""",
    "torch_xla.utils.cached_dataset": "CachedDataset(data_set,path,max_files_per_folder,compress)",
    "torch_xla.amp": """
        autocast(device,enabled,dtype,cache_enabled)
        GradScaler(init_scale,growth_factor,backoff_factor,growth_interval,enabled,use_zero_grad)""",
    "torch_xla.amp.syncfree": "SGD Adam AdamW",
    "torch_xla.test.test_utils": """
        mp_test(func) get_summary_writer(logdir) close_summary_writer
        write_to_summary(summary_writer,global_step,dict_to_write,write_xla_metrics) now(format)
        print_training_update(device,step,loss,rate,global_rate,epoch,summary_writer)
        print_test_update(device,accuracy,epoch,step)""",
    "torch_xla.experimental": "eager_mode(enable) is_eager_mode() eager_mode_context(enable)",
    "torch_xla.experimental.custom_kernel": "flash_attention(q,k,v,causal,q_segment_ids)",
    "torch_xla.distributed.xla_backend": "ProcessGroupXla",
    "torch_xla.experimental.pjrt": """
        using_pjrt() global_ordinal() world_size() device_type() broadcast_master_param(model)
        run_multiprocess rendezvous(tag,payload)""",
    "torch_xla._internal.pjrt": """
        run_multiprocess spawn(fn,nprocs,start_method,args) spawn_threads(fn,args)
        run_singleprocess initialize_multiprocess(local_rank,local_world_size)""",
    "torch_xla._internal.tpu": "num_available_devices() num_available_chips()",
    "torch_xla._XLAC": """
        _xla_metrics_report() _get_xla_tensors_text(tensors) _get_xla_tensors_hlo(tensors)
        _get_xla_tensors_dot(tensors) _get_xla_tensor_dimension_size(tensor,dim)
        _set_allow_execution(allow) _get_xla_sharding_spec _get_xla_sharding_specs
        _xla_set_mat_mul_precision _xla_set_use_full_mat_mul_precision _xla_get_devices()
        _xla_get_default_device() _xla_set_rng_seed _xla_sync_multi _xla_step_marker
        _xla_wait_device_ops _get_git_revs() _get_graph_hash(tensors) _xla_get_tensor_id(tensor)
        _xla_tensors_from_aten(tensors,devices)""",
    "torch_xla_py.xla_model": "xla_device optimizer_step RateTracker get_xla_supported_devices",
    "torch_xla_py.data_parallel": "DataParallel(network,device_ids)",
    "torch_xla_py.parallel_loader": "ParallelLoader",
    "torch_xla_py.utils": "SampleGenerator getenv_as",
    "torch_xla_py.xla_multiprocessing": "spawn",
    "torch_xla_py.xla_env_vars": "WORLD_SIZE",
    "torch_xla_py.keyd_queue": "KeydQueue",
    "torch_xla_py.graph_saver": "save_tensors_graph",
    "torch_xla_py.metrics_saver": "save_metrics",
    "torch_xla_py.model_comparator": "compare",
}
ENTRIES = [(module, entry) for module, names in FACE.items() for entry in names.split()]


@pytest.mark.parametrize(("module", "entry"), ENTRIES, ids=[f"{m}.{e}" for m, e in ENTRIES])
def test_the_name_is_there_with_its_parameters(module, entry):
    name, called, parameters = entry.partition("(")
    found = getattr(importlib.import_module(module), name)
    if called:
        expected = [p for p in parameters.rstrip(")").split(",") if p]
        assert list(inspect.signature(found).parameters)[: len(expected)] == expected


@pytest.mark.parametrize("module", FACE)
def test_every_name_of_the_face_is_documented(module):
    face = importlib.import_module(module)
    assert face.__doc__
    for name in getattr(face, "__all__", []):
        value = getattr(face, name)
        if callable(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"
