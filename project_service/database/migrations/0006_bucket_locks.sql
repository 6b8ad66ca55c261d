-- Changed functions alone; these are in ../sql.
select;
