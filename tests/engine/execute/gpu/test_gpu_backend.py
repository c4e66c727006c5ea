"""The GPU backend: supported settings and devices, and the uses of memory."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from app.checkpoint.inspection import inspect
from app.commands.doctor import Mark, findings
from app.config import devices
from app.config.settings import make_config
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.build import build_engine
from app.engine.execute import selection
from app.engine.execute.cpu.backend import EagerBackend, NativeBackend
from app.engine.execute.gpu import precompilation
from app.engine.execute.gpu.backend import MIN_RESERVE, GpuBackend
from app.engine.execute.gpu.graphs import DeviceStep
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.selection import select_backend
from app.kernels.triton.fusing_ops import FusingOps
from app.server.run import ready_line
from tests.checkpoints import tiny
from tests.engine.execute.gpu.fake_device import FakeDevice
from tests.engine.execute.gpu.gpu_engine import SMALL, build


def make_backend(device: FakeDevice | None = None, **settings: object) -> GpuBackend:
    config = make_config({"model": str(tiny("Llama")), "device": "cuda", **settings})
    return GpuBackend(config, inspect(config.model).spec, device or FakeDevice())


def test_forced_tokens_are_for_a_cpu_by_default():
    assert make_config({"device": "cpu"}).scheduler.speculative_grammar
    assert not make_config({"device": "cuda"}).scheduler.speculative_grammar
    assert make_config({"device": "cuda", "speculative_grammar": True}).scheduler.speculative_grammar


def test_a_gpu_has_larger_default_limits():
    assert make_config({"device": "cuda"}).scheduler.max_num_seqs == 256
    assert make_config({"device": "cuda"}).scheduler.max_num_batched_tokens == 2048
    assert make_config({"device": "cuda", "max_num_seqs": 9}).scheduler.max_num_seqs == 9
    assert make_config({"device": "cpu"}).scheduler.max_num_seqs == 64


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda", "quantization": "int8"}, "quantization int8 is supported on a CPU only"),
        ({"device": "cuda", "quantization": "int4"}, "quantization int4 is supported on a CPU only"),
        ({"device": "cuda", "kv_cache_dtype": "int8"}, "on a GPU use fp8"),
        ({"device": "cpu", "kv_cache_dtype": "fp8"}, "on a CPU use int8"),
        ({"device": "cpu", "run_ahead": 2}, "a CPU supports only 0"),
        ({"device": "tpu"}, "device is 'tpu'; it must be one of auto, cpu, cuda"),
        ({"run_ahead": 5}, "between 0 and 4"),
        ({"gpu_memory_utilization": 1.5}, "between 0 and 1"),
    ],
)
def test_a_setting_that_the_device_does_not_support_is_rejected_by_name(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        make_config(settings)


def test_a_too_old_gpu_is_rejected():
    device = FakeDevice()
    device.capability = (7, 5)
    with pytest.raises(CannotStart, match=r"compute capability 7\.5; Quire needs 8\.0"):
        make_backend(device)


def test_fp8_is_rejected_by_name_on_a_gpu_without_it():
    device = FakeDevice()
    device.capability = (8, 0)
    with pytest.raises(ConfigurationError, match=r"fp8 needs a GPU of compute capability 8\.9 or more.*has 8\.0"):
        make_backend(device, kv_cache_dtype="fp8")
    device.capability = (8, 9)
    assert make_backend(device, kv_cache_dtype="fp8").kv_layout().dtype == torch.float8_e4m3fn


def test_heads_that_the_kernels_do_not_support_are_rejected():
    narrow = {"head_dim": 12}
    many = {"num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 16}
    for fields, words in ((narrow, "heads are 12 wide"), (many, "20 query heads for each key head")):
        config = make_config({"model": str(tiny("Llama", **fields)), "device": "cuda"})
        with pytest.raises(CannotStart, match=words):
            GpuBackend(config, inspect(config.model).spec, FakeDevice())


def test_run_ahead_depends_on_the_size_of_the_model(monkeypatch):
    assert make_backend().run_ahead == 3
    assert make_backend(run_ahead=1).run_ahead == 1 and make_backend(run_ahead=0).run_ahead == 0
    assert make_backend(speculative_ngram=4).run_ahead == 0
    assert make_backend(speculative_ngram=4, run_ahead=2).run_ahead == 2
    for gib, depth in ((1, 3), (5, 2), (20, 1)):
        monkeypatch.setattr("app.engine.execute.gpu.backend.weight_bytes", lambda spec, how, n=gib: n << 30)
        assert make_backend().run_ahead == depth


def test_few_rows_are_fused_unless_deterministic():
    assert isinstance(make_backend().ops, FusingOps)
    assert not isinstance(make_backend(deterministic=True).ops, FusingOps)


def test_the_cache_gets_free_memory_except_a_reserve():
    device = FakeDevice(total=1 << 34)
    backend = make_backend(device, gpu_memory_utilization=0.75)
    free = backend.free_memory()
    assert free == 1 << 33
    assert backend.cache_memory(free) == free - (1 << 32) - backend.graph_memory > 0
    assert make_backend(device, enforce_eager=True).graph_memory == 0
    assert make_backend(device, gpu_memory_utilization=0.0).cache_memory(free) == 0


def test_some_memory_is_left_to_the_driver_whatever_is_configured():
    backend = make_backend(FakeDevice(total=1 << 34), gpu_memory_utilization=1.0)
    assert backend.cache_memory(backend.free_memory()) == (1 << 33) - MIN_RESERVE - backend.graph_memory


def test_a_gpu_of_amd_is_rejected_by_name(monkeypatch, caplog):
    monkeypatch.setattr(selection, "resolve_device", lambda device: "cuda")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = make_config({"model": str(tiny("Llama")), "device": "cuda"})
    with pytest.raises(CannotStart, match=r"built for AMD GPUs \(ROCm\)"):
        select_backend(config, inspect(config.model))
    finding = {finding.name: finding for finding in findings(config)}["gpu"]
    assert finding.mark is Mark.FAIL and "ROCm" in finding.text


def test_a_driver_is_found_by_its_files_or_by_its_library(tmp_path, monkeypatch):
    assert not devices.has_nvidia_driver(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert devices.has_nvidia_driver(tmp_path)
    monkeypatch.setattr(devices, "_loads_driver", lambda: True)
    assert devices.has_nvidia_driver()


def test_the_version_of_the_driver_is_read_from_its_library(monkeypatch):
    class Library:
        def cuDriverGetVersion(self, version):  # noqa: N802
            version._obj.value = 12040

    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: Library())
    assert devices.driver_version() == 12040
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: object())
    assert devices.driver_version() == 0


@pytest.mark.parametrize(
    ("version", "is_wanted", "is_used"), [(12030, True, True), (12020, True, False), (12030, False, False)]
)
def test_a_driver_whose_graphs_lose_dependent_launches_is_given_none(version, is_wanted, is_used, monkeypatch):
    """Also what is compiled beforehand is then for plain launches."""
    given = []
    monkeypatch.setattr(selection, "driver_version", lambda: version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "app.engine.execute.gpu.device.Device", lambda **settings: given.append(settings) or FakeDevice()
    )
    monkeypatch.setattr(precompilation.Precompilation, "start", lambda self: given.append(self._job["settings"]))
    config = make_config({"model": str(tiny("Llama")), "device": "cuda", "dependent_launches": is_wanted})
    select_backend(config, inspect(config.model))
    assert [settings["dependent_launches"] for settings in given] == [is_used] * 2


def test_prepare_returns_the_bytes_that_it_allocates():
    backend = make_backend(max_num_seqs=8, max_num_batched_tokens=64)
    num_bytes = backend.prepare(256, (1,))
    held = [backend._memory.buffer, *backend._ropes, backend._sampler._seen_SV, backend._sampler._adjusted_RV]
    held_bytes = sum(tensor.nbytes for tensor in held) + backend._arena.num_bytes
    assert held_bytes < num_bytes < 2 * held_bytes + (1 << 20)


def test_only_with_deterministic_the_same_kernels_choose_the_same_tokens():
    small = tiny("Llama", num_hidden_layers=1)
    assert build(small, max_num_seqs=1).model_info.kernels is None
    assert build(small, max_num_seqs=1, deterministic=True).model_info.kernels == "triton"


def test_startup_reports_the_uses_of_memory():
    model_info = build(tiny("Llama", num_hidden_layers=1), max_num_seqs=1).model_info
    names = ["weights", "graphs", "activations", "KV cache of 320 tokens", "left free"]
    assert [line.split("  ")[0] for line in model_info.memory] == names
    assert all("KiB" in line or "MiB" in line or "GiB" in line for line in model_info.memory)
    *memory, defaults, last = ready_line(model_info, ["http://127.0.0.1:8000"]).splitlines()
    assert last.startswith("Ready: ") and last.endswith(" http://127.0.0.1:8000")
    assert defaults.startswith("  sampling defaults: ")
    assert [line.strip() for line in memory] == list(map(str.strip, model_info.memory))


def test_a_cache_that_does_not_fit_is_reduced(monkeypatch, caplog):
    """Memory that the driver reports as free may be fragmented, or be allocated by others meanwhile."""
    sizes: list[int] = []

    def allocate(cache: KVCache, layout, num_blocks: int, *rest: object) -> None:
        sizes.append(num_blocks)
        if num_blocks > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        original(cache, layout, num_blocks, *rest)

    original = KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", allocate)
    engine = build(tiny("Llama", num_hidden_layers=1), num_kv_blocks=30, max_num_seqs=1)
    assert sizes == [30, 27, 24, 21, 18] and engine.model_info.kv_capacity_tokens == 18 * 8
    assert "memory for a KV cache of 30 blocks; trying 27" in caplog.text

    def fail(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(KVCache, "__init__", fail)
    with pytest.raises(CannotStart, match="Not enough memory"):
        build(tiny("Llama"))


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_gpu_that_torch_does_not_find_is_an_error_only_if_required(wanted, monkeypatch, caplog):
    monkeypatch.setattr(selection, "resolve_device", lambda device: "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = make_config({"model": str(tiny("Llama")), "device": wanted})
    files = inspect(config.model)
    if wanted == "cuda":
        with pytest.raises(CannotStart, match="torch finds no GPU"):
            select_backend(config, files)
    else:
        assert isinstance(select_backend(config, files), NativeBackend | EagerBackend)
        assert "the model runs on the CPU" in caplog.text


@pytest.mark.parametrize("settings", [{"kv_cache_dtype": "fp8"}, {"run_ahead": 2}])
def test_gpu_settings_are_rejected_if_the_gpu_cannot_be_used(settings, monkeypatch):
    for module in ("app.config.settings", "app.config.checks"):
        monkeypatch.setattr(f"{module}.resolve_device", lambda device: "cuda")
    monkeypatch.setattr(selection, "resolve_device", lambda device: "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = make_config({"model": str(tiny("Llama")), **settings})
    with pytest.raises(ConfigurationError, match=r"fp8 is supported on a GPU only|a CPU supports only 0"):
        select_backend(config, inspect(config.model))


def test_a_small_token_budget_limits_the_default_number_of_sequences():
    assert make_config({"device": "cuda", "max_num_batched_tokens": 128}).scheduler.max_num_seqs == 128


def test_too_low_utilization_is_named_in_the_error():
    with pytest.raises(CannotStart, match=r"raise .*--gpu-memory-utilization"):
        build(tiny("Llama"), num_kv_blocks=None, gpu_memory_utilization=0.1)


def test_a_gpu_needs_triton(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(selection, "find_spec", lambda name: None)
    config = make_config({"model": str(tiny("Llama")), "device": "cuda"})
    with pytest.raises(CannotStart, match="extra `gpu`"):
        select_backend(config, inspect(config.model))


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_gpu_needs_a_c_compiler(wanted, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(selection, "resolve_device", lambda device: "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("app.engine.execute.gpu.device.Device", lambda **settings: FakeDevice())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    config = make_config({"model": str(tiny("Llama")), "device": wanted})
    files = inspect(config.model)
    if wanted == "cuda":
        with pytest.raises(CannotStart, match=r"C compiler .*apt-get install gcc"):
            select_backend(config, files)
    else:
        assert isinstance(select_backend(config, files), NativeBackend | EagerBackend)
        assert "the model runs on the CPU: Triton needs a C compiler" in caplog.text


def test_the_kernels_are_waited_for_and_every_shape_runs_before_the_first_request(monkeypatch):
    order: list[object] = []
    run = DeviceStep.run
    monkeypatch.setattr(DeviceStep, "run", lambda step, shape: (order.append(shape), run(step, shape))[1])
    config = make_config({"model": str(tiny("Llama", num_hidden_layers=1)), **SMALL, "swap_space": 1 << 20})
    monkeypatch.setattr("app.text.entry.opened_model.check_wanted_gpu", lambda wanted: None)
    monkeypatch.setattr(
        "app.engine.build.select_backend",
        lambda config, files: GpuBackend(config, files.spec, FakeDevice(), lambda: order.append("compiled")),
    )
    monkeypatch.setattr("app.engine.execute.gpu.backend.MAX_ROWS", 0)  # fused products take long where interpreted
    engine = build_engine(config)
    assert order == ["compiled", *engine.runner.inputs.shapes.warm_ups()]
    assert engine.runner.cache.num_host_blocks > 0


def test_a_kernel_that_does_not_fit_ends_the_start_with_words(monkeypatch):
    def run(step: DeviceStep, shape: object) -> None:
        raise OutOfResources(233000, 232448, "shared memory")

    device = FakeDevice()
    monkeypatch.setattr(DeviceStep, "run", run)
    monkeypatch.setattr(device, "run", lambda work: work())
    with pytest.raises(CannotStart, match=r"Triton 3\.\S+ compiles a GPU kernel.*233000.*Install the Triton that"):
        build(tiny("Llama"), device)
