-- Packing small colour images: 52 of 2 x 2 pixels with three channels, of three species.

CREATE TABLE image_data AS
SELECT ARRAY(SELECT ARRAY(SELECT ARRAY[(i * 7 + x) % 256, (i * 11 + y) % 256, (i + x + y) % 256]
                            FROM generate_series(0, 1) AS y) FROM generate_series(0, 1) AS x)::integer[] AS rgb,
       (ARRAY['cat', 'dog', 'bird'])[1 + i % 3]::text AS species
  FROM generate_series(1, 52) AS i;

SELECT madlib.training_preprocessor_dl('image_data', 'image_packed', 'species', 'rgb', NULL, 255);
SELECT rgb_shape, species_shape, octet_length(rgb), octet_length(species), buffer_id FROM image_packed;
SELECT * FROM image_packed_summary;

SELECT madlib.training_preprocessor_dl('image_data', 'image_packed_10', 'species', 'rgb', 10, 255, ARRAY[5]);
SELECT * FROM image_packed_10_summary;

SELECT madlib.validation_preprocessor_dl('image_data', 'image_val_packed', 'species', 'rgb', 'image_packed_10', 10);
SELECT * FROM image_val_packed_summary;
