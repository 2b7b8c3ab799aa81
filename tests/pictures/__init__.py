"""The pictures of docs/images (`script/pictures`)."""
