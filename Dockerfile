# One image for every role: api, worker, beat and migrate are subcommands of the same program.
# The embedded servers of the development set-up are left out.

# A tag can be moved to another image, a digest cannot. `docker buildx imagetools inspect TAG` prints a newer one.
ARG BASE=python:3.13.14-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all: \
    PIP_NO_DEPS=1
WORKDIR /src
# Dependencies first: their layers outlive changes of the code. Each file has to have one of the hashes written down,
# and each has to be a wheel, because a build that compiles something is a build that differs between machines.
COPY requirements.txt requirements-build.txt ./
RUN python -m venv --without-pip /opt/palimpsest \
    && python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --require-hashes --requirement requirements-build.txt \
    && /opt/build/bin/python -m pip --python /opt/palimpsest/bin/python install --require-hashes --requirement requirements.txt
COPY . .
RUN /opt/build/bin/python -m pip wheel --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/python -m pip --python /opt/palimpsest/bin/python install --no-index /wheels/*.whl \
    && /opt/build/bin/python -m pip --python /opt/palimpsest/bin/python check \
    && /opt/build/bin/python .ci/sbom.py /opt/palimpsest/bin/python /opt/palimpsest/sbom.cdx.json

FROM ${BASE}
LABEL org.opencontainers.image.title="palimpsest" \
      org.opencontainers.image.description="Asynchronous background compaction for multi-user chat, whatever model answers" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/palimpsest/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PALIMPSEST_HOST=0.0.0.0
COPY --from=build /opt/palimpsest /opt/palimpsest
WORKDIR /tmp
# A number rather than a name, so that an orchestrator can verify that it is not root.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["palimpsest"]
CMD ["api"]
