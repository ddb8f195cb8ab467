-- Dead letters are read here and nowhere published, so none is marked as sent. Its index goes with the column.

ALTER TABLE holdfast.dead_letter DROP COLUMN forwarded;
