# Image of the role exporter: group monitor of the lock and nothing else. Build from the repository's root:
#   docker build -f workloads/images/exporter.Dockerfile --build-arg BASE=python:3.11-slim@sha256:... .
# BASE has no default, so that nobody builds on a tag that moves.
ARG BASE
FROM ${BASE} AS packages
COPY requirements/monitor.txt /requirements.txt
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /requirements.txt

FROM ${BASE}
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin nonroot
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY infra/__init__.py infra/
COPY infra/contract infra/contract
COPY workloads/library/holdfast/__init__.py holdfast/
COPY workloads/library/holdfast/contract holdfast/contract
COPY workloads/library/holdfast/runtime holdfast/runtime
# Prices of receipts.
COPY infra/placement infra/placement
COPY monitoring monitoring
# Byte-compiled here, because the root file system is read-only at run time.
RUN /opt/venv/bin/python -m compileall -q holdfast infra monitoring
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# Exec form, so that SIGTERM reaches Python and no shell.
ENTRYPOINT ["python", "-m", "monitoring"]
