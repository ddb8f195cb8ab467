# Image of the role exporter: group monitor of the lock and nothing else. Build from the repository's root:
#   python -m workloads images build ENV exporter
# BASE has no default, so that nobody builds on a tag that moves.
ARG BASE
FROM ${BASE} AS packages
# With it Python writes bytecode by hash, not by time, so that two builds of one commit are one image.
ARG SOURCE_DATE_EPOCH
COPY requirements/monitor.txt /requirements.txt
# A package index or certificates of one's own reach this step as files and stay out of the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /requirements.txt

FROM ${BASE}
ARG SOURCE_DATE_EPOCH
RUN useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin nonroot
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY infra/__init__.py infra/
COPY infra/contract infra/contract
COPY workloads/library/holdfast/__init__.py holdfast/
COPY workloads/library/holdfast/command_line.py holdfast/
COPY workloads/library/holdfast/contract holdfast/contract
COPY workloads/library/holdfast/runtime holdfast/runtime
# Prices of receipts.
COPY infra/placement infra/placement
COPY monitoring monitoring
# Byte-compiled here, because the root file system is read-only at run time.
RUN /opt/venv/bin/python -m compileall -q holdfast infra monitoring
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ARG REVISION
ARG LOCK
LABEL org.opencontainers.image.revision=${REVISION} dev.holdfast.lock=${LOCK}
USER 65532:65532
# The command of the image has all that it imports.
RUN holdfast export --help > /dev/null
# Exec form, so that SIGTERM reaches Python and no shell.
ENTRYPOINT ["python", "-m", "monitoring"]
