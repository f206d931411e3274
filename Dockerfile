# labelgap on the CPU. Build it for your user, and run it with the current folder as the data:
#
#   docker build --build-arg UID="$(id -u)" -t labelgap .
#   docker run --rm -v "$PWD:/data" -v labelgap:/home/labelgap labelgap train tags.csv --images photos --out runs/first
#   docker run --rm -v "$PWD:/data" -v labelgap:/home/labelgap -p 8765:8765 labelgap \
#       review runs/first --host 0.0.0.0 --port 8765 --no-browser
#
# The volume keeps computed features, and the key that signs your runs: a container without it takes them for somebody
# else's, and uses no path that they name.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir "build>=1.2,<2" "hatchling>=1.27,<2" \
    && python -m build --no-isolation --wheel --outdir /dist

FROM python:3.11-slim
COPY constraints.txt /dist/
COPY --from=build /dist/ /dist/
# uv finds the build of PyTorch without CUDA, which is several gigabytes smaller.
RUN pip install --no-cache-dir uv \
    && wheel=$(ls /dist/labelgap-*.whl) \
    && UV_TORCH_BACKEND=cpu uv pip install --system --no-cache --compile-bytecode \
        --constraint /dist/constraints.txt "labelgap[review,sweep,timm,onnx] @ file://$wheel" \
    && pip uninstall --yes uv \
    && rm -r /dist
ARG UID=1000
RUN useradd --create-home --non-unique --uid "$UID" labelgap && install --directory --owner labelgap /data
USER labelgap
WORKDIR /data
ENTRYPOINT ["labelgap"]
CMD ["--help"]
