-- Everybody may call MADlib's functions, as there.  What they call in the schema cerebro takes the role cerebro_user.
GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;
-- Tables of custom functions are made in this schema, by those who may register functions.
GRANT CREATE ON SCHEMA @extschema@ TO cerebro_admin;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @extschema@ TO PUBLIC;
