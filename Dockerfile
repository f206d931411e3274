# labelgap on the CPU. Build and run it with the current folder as the data:
#
#   docker build -t labelgap .
#   docker run --rm -v "$PWD:/data" labelgap train tags.csv --images photos --out runs/first
#   docker run --rm -v "$PWD:/data" -p 8765:8765 labelgap review runs/first --host 0.0.0.0 --port 8765 --no-browser
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
        --constraint /dist/constraints.txt "labelgap[review,timm,onnx] @ file://$wheel" \
    && pip uninstall --yes uv \
    && rm -r /dist
RUN useradd --create-home labelgap
USER labelgap
WORKDIR /data
ENTRYPOINT ["labelgap"]
CMD ["--help"]
