# docker build -t quire .
# docker build -t quire:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
# docker run -p 8000:8000 -e QUIRE_API_KEY=choose-one quire

# The wheel, with the CPU kernels compiled for all instruction sets: that takes a compiler.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

COPY constraints.txt /tmp/
RUN pip install --no-deps --constraint /tmp/constraints.txt --index-url "$TORCH_INDEX" torch
RUN --mount=from=build,source=/wheels,target=/wheels pip install --constraint /tmp/constraints.txt /wheels/*.whl

RUN useradd --create-home quire
USER quire
WORKDIR /home/quire

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
ENTRYPOINT ["quire"]
# Reachable from outside the container, so it starts only with QUIRE_API_KEY set, or with --insecure.
CMD ["serve", "--host", "0.0.0.0"]
