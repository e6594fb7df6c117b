/* Does nothing: what a linked program costs before there is a model in it. */
int main(int argc, char **argv) {
    return argc > 1 && argv[1][0] != 0;
}
