// Streams, events, host functions and values written and awaited in stream order.
#include <algorithm>
#include <memory>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {
namespace {

CUresult create_stream(Call call, CUstream* out, unsigned flags, int priority) {
  return in_context(call, [=](const Context& context) {
    if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
    Driver& state = driver();
    const StreamKind kind = flags == CU_STREAM_NON_BLOCKING ? StreamKind::kNonBlocking : StreamKind::kBlocking;
    StreamId id = 0;
    if (const Status status = state.model->create_stream(context.device, kind, &id); status != Status::kOk) {
      return to_result(status);
    }
    const CUstream handle = state.streams.create();
    Stream& stream = *state.streams.find(handle);
    stream.id = id;
    stream.context = thread().stack.back();
    stream.device = context.device;
    stream.flags = flags;
    stream.priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
    const std::lock_guard lock(state.mutex);
    stream.unique_id = state.next_id++;
    *out = handle;
    return CUDA_SUCCESS;
  });
}

CUresult destroy_stream(Call call, CUstream handle) {
  return in_context(call, [=](const Context&) {
    Stream* stream = driver().streams.find(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    const CUresult result = to_result(driver().model->destroy_stream(stream->id));
    driver().streams.destroy(handle);
    return result;
  });
}

CUresult destroy_event(Call call, CUevent handle) {
  return in_context(call, [=](const Context&) {
    Event* event = driver().events.find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = to_result(driver().model->destroy_event(event->id));
    driver().events.destroy(handle);
    return result;
  });
}

// A call about one stream.
template <class Body>
CUresult on_stream(Call call, CUstream handle, Body&& body) {
  return in_context(call, [&](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*stream);
  });
}

CUresult synchronize(Call call, CUstream handle) {
  return on_stream(call, handle, [](Stream& stream) {
    if (const CUresult result = check_synchronize_stream(stream); result != CUDA_SUCCESS) return result;
    return to_result(driver().model->synchronize_stream(stream.id));
  });
}

CUresult query(Call call, CUstream handle) {
  return on_stream(call, handle, [](Stream& stream) {
    if (const CUresult result = check_synchronize_stream(stream); result != CUDA_SUCCESS) return result;
    return to_result(driver().model->query_stream(stream.id));
  });
}

CUresult record(Call call, CUevent handle, CUstream stream_handle, unsigned flags) {
  return on_stream(call, stream_handle, [=](Stream& stream) {
    Event* event = driver().events.find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
    // External: a node that records at every launch of the graph, not an edge of the capture.
    if (flags == CU_EVENT_RECORD_EXTERNAL) return submit(stream, RecordWork{handle});
    if (CUresult result; capture_record(stream, *event, &result)) return result;
    return to_result(driver().model->record_event(event->id, stream.id));
  });
}

CUresult wait(Call call, CUstream stream_handle, CUevent handle, unsigned flags) {
  return on_stream(call, stream_handle, [=](Stream& stream) {
    Event* event = driver().events.find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_EVENT_WAIT_EXTERNAL) return submit(stream, WaitWork{handle});
    if (CUresult result; capture_wait(stream, *event, &result)) return result;
    return to_result(driver().model->wait_event(stream.id, event->id));
  });
}

CUresult elapsed(Call call, float* milliseconds, CUevent start_handle, CUevent end_handle) {
  return in_context(call, [=](const Context&) {
    const Event* start = driver().events.find(start_handle);
    const Event* end = driver().events.find(end_handle);
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
    TimeNs elapsed_ns = 0;
    const Status status = driver().model->event_elapsed(start->id, end->id, &elapsed_ns);
    if (status == Status::kOk) *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) / 1e6);
    return to_result(status);
  });
}

CUresult launch_host_function(Call call, CUstream handle, CUhostFn function, void* data) {
  return on_stream(call, handle, [=](Stream& stream) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, HostWork{function, data});
  });
}

CUresult add_callback(Call call, CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  return on_stream(call, handle, [=](Stream& stream) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream.capture.load() != nullptr) return refuse_capture(stream);
    return to_result(driver().model->host_function(stream.id, [=] { callback(handle, CUDA_SUCCESS, data); }));
  });
}

CUresult write_value(Call call, CUstream handle, CUdeviceptr address, cuuint64_t value, int bytes, unsigned flags) {
  return on_stream(call, handle, [=](Stream& stream) {
    if (address == 0 || address % static_cast<unsigned>(bytes) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, ValueWork{.is_write = true, .address = address, .value = value, .bytes = bytes});
  });
}

CUresult wait_value(Call call, CUstream handle, CUdeviceptr address, cuuint64_t value, int bytes, unsigned flags) {
  return on_stream(call, handle, [=](Stream& stream) {
    if (address == 0 || address % static_cast<unsigned>(bytes) != 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned condition = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
    if (condition > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
    return submit(
        stream,
        ValueWork{
            .address = address, .value = value, .bytes = bytes, .condition = static_cast<WaitCondition>(condition)});
  });
}

CUresult batch_memory_operations(Call call, CUstream handle, unsigned count, CUstreamBatchMemOpParams* operations,
                                 unsigned flags) {
  return on_stream(call, handle, [=](Stream& stream) -> CUresult {
    if (operations == nullptr || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      const CUstreamBatchMemOpParams& operation = operations[i];
      ValueWork work;
      switch (operation.operation) {
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
          work.is_write = true;
          work.address = operation.writeValue.address;
          work.value = operation.writeValue.value64;
          break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
          work.address = operation.waitValue.address;
          work.value = operation.waitValue.value64;
          work.condition = static_cast<WaitCondition>(operation.waitValue.flags & CU_STREAM_WAIT_VALUE_NOR);
          break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
          continue;
        default:
          return CUDA_ERROR_INVALID_VALUE;
      }
      const bool is_wide = operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
                           operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
      work.bytes = is_wide ? 8 : 4;
      if (!is_wide) work.value &= 0xffffffffU;
      if (const CUresult result = submit(stream, work); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUresult get_context(Call call, CUstream handle, CUcontext* out, CUgreenCtx* green = nullptr) {
  return on_stream(call, handle, [=](const Stream& stream) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (green != nullptr) *green = nullptr;
    *out = stream.context;
    return CUDA_SUCCESS;
  });
}

// A getter of one number.
template <class T, class Read>
CUresult get(Call call, CUstream handle, T* out, Read read) {
  return on_stream(call, handle, [=](const Stream& stream) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = static_cast<T>(read(stream));
    return CUDA_SUCCESS;
  });
}

CUresult get_attribute(Call call, CUstream handle, CUstreamAttrID which, CUstreamAttrValue* value) {
  return on_stream(call, handle, [=](const Stream& stream) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *value = {};
    if (which == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

// Accepted and without effect: access policy windows and synchronisation policies do not exist in the model.
CUresult set_attribute(Call call, CUstream handle, const CUstreamAttrValue* value) {
  return on_stream(call, handle,
                   [=](const Stream&) { return value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; });
}
CUresult copy_attributes(Call call, CUstream destination, CUstream source) {
  return on_stream(call, destination, [=](const Stream&) {
    return find_stream(source) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

}  // namespace

Stream* find_stream(CUstream handle) {
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    return driver().streams.find(handle);
  }
  const CUcontext current = thread().stack.back();
  Context& context = *driver().contexts.find(current);
  if (handle != CU_STREAM_PER_THREAD) return &context.legacy;
  std::unique_ptr<Stream>& stream = thread().default_streams[current];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>();
    stream->id = driver().model->per_thread_stream(context.device);
    stream->context = current;
    stream->device = context.device;
    const std::lock_guard lock(driver().mutex);
    stream->unique_id = driver().next_id++;
  }
  return stream.get();
}

}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

extern "C" {

CUresult cuStreamCreate(CUstream* out, unsigned flags) { return create_stream(Call::cuStreamCreate, out, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return create_stream(Call::cuStreamCreateWithPriority, out, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) { return destroy_stream(Call::cuStreamDestroy, stream); }
CUresult cuStreamDestroy_v2(CUstream stream) { return destroy_stream(Call::cuStreamDestroy_v2, stream); }

CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return in_context(Call::cuEventCreate, [=](const Context& context) {
    constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (out == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    EventId id = 0;
    if (const Status status = driver().model->create_event(context.device, &id); status != Status::kOk) {
      return to_result(status);
    }
    *out = driver().events.create();
    Event& event = *driver().events.find(*out);
    event.id = id;
    event.context = thread().stack.back();
    event.flags = flags;
    return CUDA_SUCCESS;
  });
}
CUresult cuEventDestroy(CUevent event) { return destroy_event(Call::cuEventDestroy, event); }
CUresult cuEventDestroy_v2(CUevent event) { return destroy_event(Call::cuEventDestroy_v2, event); }

CUresult cuEventQuery(CUevent handle) {
  return in_context(Call::cuEventQuery, [=](const Context&) {
    const Event* event = driver().events.find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = check_captured_event(*event); result != CUDA_SUCCESS) return result;
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    return to_result(driver().model->query_event(event->id));
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return in_context(Call::cuEventSynchronize, [=](const Context&) {
    const Event* event = driver().events.find(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = check_captured_event(*event); result != CUDA_SUCCESS) return result;
    if (const CUresult result = check_unsafe_call(); result != CUDA_SUCCESS) return result;
    return to_result(driver().model->synchronize_event(event->id));
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(Call::cuEventElapsedTime, milliseconds, start, end);
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(Call::cuEventElapsedTime_v2, milliseconds, start, end);
}

SIMGPU_BOTH(cuStreamSynchronize, (CUstream stream), synchronize(kCall, on(stream)))
SIMGPU_BOTH(cuStreamQuery, (CUstream stream), query(kCall, on(stream)))
SIMGPU_BOTH(cuEventRecord, (CUevent event, CUstream stream), record(kCall, event, on(stream), CU_EVENT_RECORD_DEFAULT))
SIMGPU_BOTH(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
            record(kCall, event, on(stream), flags))
SIMGPU_BOTH(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), wait(kCall, on(stream), event, flags))
SIMGPU_BOTH(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
            launch_host_function(kCall, on(stream), function, data))
SIMGPU_BOTH(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void* data, unsigned flags),
            add_callback(kCall, on(stream), callback, data, flags))
SIMGPU_BOTH(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
            write_value(kCall, on(stream), address, value, 4, flags))
SIMGPU_BOTH(cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
            write_value(kCall, on(stream), address, value, 8, flags))
SIMGPU_BOTH(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
            wait_value(kCall, on(stream), address, value, 4, flags))
SIMGPU_BOTH(cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
            wait_value(kCall, on(stream), address, value, 8, flags))
SIMGPU_BOTH(cuStreamBatchMemOp_v2,
            (CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags),
            batch_memory_operations(kCall, on(stream), count, operations, flags))
SIMGPU_BOTH(cuStreamGetCtx, (CUstream stream, CUcontext* out), get_context(kCall, on(stream), out))
SIMGPU_BOTH(cuStreamGetCtx_v2, (CUstream stream, CUcontext* out, CUgreenCtx* green),
            get_context(kCall, on(stream), out, green))
SIMGPU_BOTH(cuStreamGetFlags, (CUstream stream, unsigned* out),
            get(kCall, on(stream), out, [](const Stream& s) { return s.flags; }))
SIMGPU_BOTH(cuStreamGetPriority, (CUstream stream, int* out),
            get(kCall, on(stream), out, [](const Stream& s) { return s.priority; }))
SIMGPU_BOTH(cuStreamGetId, (CUstream stream, unsigned long long* out),
            get(kCall, on(stream), out, [](const Stream& s) { return s.unique_id; }))
SIMGPU_BOTH(cuStreamGetDevice, (CUstream stream, CUdevice* out),
            get(kCall, on(stream), out, [](const Stream& s) { return s.device; }))
SIMGPU_BOTH(cuStreamGetAttribute, (CUstream stream, CUstreamAttrID which, CUstreamAttrValue* value),
            get_attribute(kCall, on(stream), which, value))
SIMGPU_BOTH(cuStreamSetAttribute, (CUstream stream, CUstreamAttrID, const CUstreamAttrValue* value),
            set_attribute(kCall, on(stream), value))
SIMGPU_BOTH(cuStreamCopyAttributes, (CUstream destination, CUstream source),
            copy_attributes(kCall, on(destination), on(source)))

}  // extern "C"
