# docker build --tag ehrsequencing .
# docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" ehrsequencing demo --out demo
FROM python:3.12-slim

# torch without CUDA: a tenth of the size
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY src /source/src
RUN python -m pip install --no-cache-dir --no-compile --extra-index-url "$TORCH_INDEX" -c /source/constraints.txt "/source[omop,serve]" \
 && rm -r /source

# Any user may run it (--user), so home and caches lie where everybody may write.
RUN useradd --create-home ehrseq && install -d -m 1777 /work
USER ehrseq
ENV HOME=/tmp XDG_CACHE_HOME=/tmp/cache PYTHONDONTWRITEBYTECODE=1
WORKDIR /work
ENTRYPOINT ["ehrseq"]
CMD ["--help"]
