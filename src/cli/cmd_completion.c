/* `muster completion bash|zsh`: prints the script. */
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/completion.h"

static const char help[] = "usage: muster completion bash|zsh\n"
                           "\n"
                           "Prints the completions of muster and torchrun for a shell. To use them from now on:\n"
                           "  bash  muster completion bash > ~/.local/share/bash-completion/completions/muster\n"
                           "        (and a second copy named torchrun)\n"
                           "  zsh   muster completion zsh > FOLDER/_muster, with FOLDER in $fpath before compinit\n"
                           "For this session only: source <(muster completion bash)\n";

static int print(int (*write_script)(struct buf *out)) {
    struct buf out;
    buf_init(&out, COMPLETION_BYTES_MAX);
    bool fine = write_script(&out) == 0 && cli_write(STDOUT_FILENO, &out);
    buf_done(&out);
    if (!fine) {
        cli_error("muster completion", false, "the script could not be written to stdout");
    }
    return fine ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

int cmd_completion(int argc, char **argv) {
    const char *shell = argc > 1 ? argv[1] : "";
    if (strcmp(shell, "bash") == 0) {
        return print(completion_bash);
    }
    if (strcmp(shell, "zsh") == 0) {
        return print(completion_zsh);
    }
    if (strcmp(shell, "--help") == 0 || strcmp(shell, "-h") == 0) {
        return cli_print(help);
    }
    char text[256] = "name a shell: bash or zsh";
    if (shell[0] != '\0') {
        (void)str_format(text, sizeof text, "there is no completion for '%.100s'; bash and zsh are known", shell);
    }
    cli_error("muster completion", true, text);
    return CLI_EXIT_USAGE;
}
