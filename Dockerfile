# docker build -t quire .
# docker build -t quire:cuda --build-arg DEVICE=cuda .
# docker run -p 8000:8000 -e QUIRE_API_KEY=choose-one quire

# The wheel, with the CPU kernels compiled for all instruction sets: that takes a compiler.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim

ARG DEVICE=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# Triton compiles the C code that launches its kernels where they run. Python's headers are in the base image.
RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi

# torch for GPUs is PyPI's, and brings the Triton that it was built with; for CPUs it has an index of its own.
COPY constraints.txt /tmp/
RUN if [ "$DEVICE" = cuda ]; then \
        sed -i '/^triton==/d' /tmp/constraints.txt; \
    else \
        pip install --no-deps --constraint /tmp/constraints.txt --index-url https://download.pytorch.org/whl/cpu torch; \
    fi
RUN --mount=from=build,source=/wheels,target=/wheels \
    extra=$([ "$DEVICE" = cuda ] && echo '[gpu]' || true); \
    pip install --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)$extra"

# A new volume gets the owner of the folder that it is mounted on. The journal's holds prompts and answers.
RUN useradd --create-home quire && install --directory --owner=quire /var/cache/quire /home/quire/.cache && \
    install --directory --owner=quire --mode=700 /var/lib/quire
USER quire
WORKDIR /home/quire

# Compiled GPU kernels: mount a volume here, or fill it in an image of your own (RUN quire warm MODEL --capability 9.0).
ENV TRITON_CACHE_DIR=/var/cache/quire

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
ENTRYPOINT ["quire"]
# Reachable from outside the container, so it starts only with QUIRE_API_KEY set, or with --insecure.
CMD ["serve", "--host", "0.0.0.0"]
