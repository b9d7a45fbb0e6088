drop function find_console_session(bytea), take_console_ticket(bytea), expire_console_sessions(integer);
drop table operator_actions, console_sessions;
