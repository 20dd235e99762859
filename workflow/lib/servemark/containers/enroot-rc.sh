# enroot start --rc: run the given command in the given folder, without the entry point of the image.
cd "$1" && shift && exec "$@"
