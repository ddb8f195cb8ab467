# Image of the role server: group serve of the lock and nothing else. Build from the repository's root:
#   docker build -f workloads/images/server.Dockerfile --build-arg BASE=python:3.11-slim@sha256:... .
# BASE has no default, so that nobody builds on a tag that moves.
ARG BASE
FROM ${BASE} AS packages
COPY requirements/serve.txt /requirements.txt
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /requirements.txt

FROM ${BASE}
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin nonroot
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY workloads/library/holdfast holdfast
# Byte-compiled here, because the root file system is read-only at run time.
RUN /opt/venv/bin/python -m compileall -q holdfast
# Where GKE mounts the driver: libcuda.so.1 is not in the image, and the loader's cache cannot know a later mount.
# No NVIDIA_VISIBLE_DEVICES: GKE does not read it, and elsewhere "all" would hand out every GPU of the machine.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64
ENV PATH=/opt/venv/bin:$PATH:/usr/local/nvidia/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# Exec form, so that SIGTERM reaches Python and no shell.
ENTRYPOINT ["python", "-m", "holdfast"]
