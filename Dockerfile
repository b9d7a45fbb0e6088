# One image for every role: api, worker, sweeper and migrate are subcommands of the same program.
# The embedded servers of the development set-up are left out.

FROM python:3.13-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/palimpsest
# Dependencies first: their layer outlives changes of the code. They must exist as wheels, because a build that
# compiles something is a build that differs between machines.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > requirements.txt \
    && /opt/palimpsest/bin/pip install --only-binary=:all: --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && /opt/palimpsest/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/palimpsest/bin/pip check \
    && /opt/palimpsest/bin/pip uninstall --yes pip

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="palimpsest" \
      org.opencontainers.image.description="Asynchronous background compaction for multi-user chat on Claude" \
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
