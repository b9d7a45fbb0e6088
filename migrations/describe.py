"""The schema that a database has, as SQL: read from the catalogue, in a fixed order, so that it can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

HEADER: Final = """\
-- The whole schema at revision {revision}, as a migrated database has it: what all the revisions come to. `make docs`
-- writes this file, and a test holds it against a database. Reasons stand beside the statements in migrations/sql/.
-- Left out are the roles, the owner of the tables, and how texts are compressed, which is as the server can.
"""
_RELATIONS: Final = """
select c.oid, c.relname as name, c.relkind::text as kind, c.relrowsecurity as secured, c.relforcerowsecurity as forced,
       array_to_string(c.reloptions, ', ') as options, pg_get_viewdef(c.oid, true) as definition
from pg_class as c
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v', 'c')
order by c.relname collate "C"
"""
_COLUMNS: Final = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as required,
       pg_get_expr(d.adbin, d.adrelid) as value, a.attgenerated <> '' as generated, a.attstattarget = 0 as uncounted,
       a.attrelid as relation
from pg_attribute as a left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = any (cast(:oids as oid[])) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_CONSTRAINTS: Final = """
select conname || ' ' || pg_get_constraintdef(oid), conrelid as relation from pg_constraint
where conrelid = any (cast(:oids as oid[])) and contype in ('p', 'u', 'c', 'f')
order by position(contype::text in 'pucf'), conname collate "C"
"""
_INDEXES: Final = """
select pg_get_indexdef(i.indexrelid), i.indrelid as relation
from pg_index as i join pg_class as c on c.oid = i.indexrelid
where i.indrelid = any (cast(:oids as oid[]))
    and not exists (select from pg_constraint where conindid = i.indexrelid and contype in ('p', 'u'))
order by c.relname collate "C"
"""
_TRIGGERS: Final = """
select pg_get_triggerdef(oid), tgrelid as relation from pg_trigger
where tgrelid = any (cast(:oids as oid[])) and not tgisinternal order by tgname collate "C"
"""
_POLICIES: Final = """
select p.polname as name,
       case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete'
            else 'all' end as command,
       (select string_agg(coalesce(r.rolname, 'public'), ', ' order by r.rolname collate "C")
        from unnest(p.polroles) as o (oid) left join pg_roles as r on r.oid = o.oid) as roles,
       pg_get_expr(p.polqual, p.polrelid) as seen, pg_get_expr(p.polwithcheck, p.polrelid) as written,
       p.polrelid as relation
from pg_policy as p where p.polrelid = any (cast(:oids as oid[])) order by p.polname collate "C"
"""
_GRANTS: Final = """
with granted as (
    select c.oid as relation, a.grantee, a.privilege_type as privilege, '' as column, 0 as place
    from pg_class as c, aclexplode(c.relacl) as a
    where c.oid = any (cast(:oids as oid[])) and a.grantee <> c.relowner
    union all
    select c.oid, a.grantee, a.privilege_type, t.attname, t.attnum
    from pg_class as c join pg_attribute as t on t.attrelid = c.oid, aclexplode(t.attacl) as a
    where c.oid = any (cast(:oids as oid[])) and a.grantee <> c.relowner
), privileges as (
    select g.relation, g.grantee, g.privilege, string_agg(g.column, ', ' order by g.place) as columns
    from granted as g group by g.relation, g.grantee, g.privilege, g.place = 0
)
select coalesce(r.rolname, 'public') as role,
       string_agg(lower(p.privilege) || case when p.columns = '' then '' else ' (' || p.columns || ')' end, ', '
                  order by p.columns <> '', p.privilege collate "C") as privileges,
       p.relation
from privileges as p left join pg_roles as r on r.oid = p.grantee
group by p.relation, r.rolname order by r.rolname collate "C"
"""
_FUNCTIONS: Final = """
select p.proname as name, p.oid::regprocedure::text as signature,
       pg_get_function_arguments(p.oid) as arguments,
       case when 'o' = any (p.proargmodes) then null else pg_get_function_result(p.oid) end as result,
       l.lanname as language,
       case p.provolatile when 'i' then 'immutable' when 's' then 'stable' end as volatility, p.prosecdef as definer,
       p.proconfig as settings, p.prosrc as source,
       case when p.prosecdef then pg_get_userbyid(p.proowner) end as owner,
       p.proacl is not null as restricted,
       (select string_agg(coalesce(r.rolname, 'public'), ', ' order by r.rolname collate "C")
        from aclexplode(p.proacl) as a left join pg_roles as r on r.oid = a.grantee
        where a.grantee <> p.proowner) as callers
from pg_proc as p join pg_language as l on l.oid = p.prolang join pg_namespace as n on n.oid = p.pronamespace
where n.nspname = 'public' order by p.proname collate "C", p.oid::regprocedure::text collate "C"
"""


class _Rows:
    """What the catalogue has of relations; each query is made once for all of them."""

    def __init__(self, connection: Connection, relations: Sequence[Any]) -> None:
        self._connection = connection
        self._oids = [relation.oid for relation in relations]
        self._by_query: dict[str, dict[int, list[Any]]] = {}

    def __call__(self, query: str, relation: Any) -> Sequence[Any]:
        """Return the rows of one relation, in the order of the query."""
        if query not in self._by_query:
            by_oid = self._by_query[query] = {oid: [] for oid in self._oids}
            for row in self._connection.execute(text(query), {"oids": self._oids}):
                by_oid[row.relation].append(row)
        return self._by_query[query][relation.oid]


def schema_text(connection: Connection) -> str:
    """Return the schema `public` as SQL: types, tables with all that belongs to them, views and functions, by name."""
    # Names of relations that are on the search path are told without their schema.
    connection.execute(text("set local search_path = public"))
    revision = connection.scalar(text("select version_num from alembic_version"))
    relations = connection.execute(text(_RELATIONS)).all()
    rows = _Rows(connection, relations)
    parts = [HEADER.format(revision=revision)]
    parts.extend("\n".join(_type(rows, each)) for each in relations if each.kind == "c")
    parts.extend("\n".join(_table(rows, each)) for each in relations if each.kind == "r")
    parts.extend("\n".join(_view(rows, each)) for each in relations if each.kind == "v")
    parts.extend("\n".join(_function(each)) for each in connection.execute(text(_FUNCTIONS)))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _type(rows: _Rows, relation: Any) -> Iterator[str]:
    columns = [f"    {each.name} {each.type}" for each in rows(_COLUMNS, relation)]
    yield f"create type {relation.name} as ("
    yield ",\n".join(columns)
    yield ");"


def _table(rows: _Rows, relation: Any) -> Iterator[str]:
    columns = rows(_COLUMNS, relation)
    lines = [_column(each) for each in columns]
    lines += [f"    constraint {each[0]}" for each in rows(_CONSTRAINTS, relation)]
    yield f"create table {relation.name} ("
    yield ",\n".join(lines)
    yield f") with ({relation.options});" if relation.options else ");"
    if uncounted := [each.name for each in columns if each.uncounted]:
        changes = ", ".join(f"alter column {name} set statistics 0" for name in uncounted)
        yield f"alter table {relation.name} {changes};"
    yield from (f"{each[0]};" for each in rows(_INDEXES, relation))
    if relation.secured:
        yield f"alter table {relation.name} enable row level security;"
    if relation.forced:
        yield f"alter table {relation.name} force row level security;"
    for policy in rows(_POLICIES, relation):
        seen = f" using ({policy.seen})" if policy.seen else ""
        written = f" with check ({policy.written})" if policy.written else ""
        yield f"create policy {policy.name} on {relation.name} for {policy.command} to {policy.roles}{seen}{written};"
    yield from _triggers_and_grants(rows, relation)


def _column(column: Any) -> str:
    value = "" if column.value is None else f" default {column.value}"
    if column.generated:
        value = f" generated always as ({column.value}) stored"
    return f"    {column.name} {column.type}{' not null' if column.required else ''}{value}"


def _view(rows: _Rows, relation: Any) -> Iterator[str]:
    options = f" with ({relation.options})" if relation.options else ""
    yield f"create view {relation.name}{options} as"
    yield relation.definition
    for each in rows(_COLUMNS, relation):
        if each.value is not None:
            yield f"alter view {relation.name} alter column {each.name} set default {each.value};"
    yield from _triggers_and_grants(rows, relation)


def _triggers_and_grants(rows: _Rows, relation: Any) -> Iterator[str]:
    yield from (f"{each[0]};" for each in rows(_TRIGGERS, relation))
    for grant in rows(_GRANTS, relation):
        yield f"grant {grant.privileges} on {relation.name} to {grant.role};"


def _setting(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"set {name} = {value}" if name == "search_path" else f"set {name} = '{value}'"


def _function(function: Any) -> Iterator[str]:
    result = f" returns {function.result}" if function.result else ""
    words = [f"language {function.language}", function.volatility, "security definer" if function.definer else None]
    words.extend(map(_setting, function.settings or ()))
    yield f"create function {function.name}({function.arguments}){result}"
    yield f"{' '.join(word for word in words if word)} as $${function.source}$$;"
    if function.owner:
        yield f"alter function {function.signature} owner to {function.owner};"
    if function.restricted:
        yield f"revoke execute on function {function.signature} from public;"
    if function.callers:
        yield f"grant execute on function {function.signature} to {function.callers};"
