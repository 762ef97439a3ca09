# Counts the tests of a JUnit file as ctest writes it; prints skips with their reasons, failures with the end of what
# they said (it is far above otherwise, between hundreds of others), and last the line 'N passed, N failed, N skipped'.
# Used by tools/run-tests.

BEGIN {
    tail_lines = 40
}

function plain(text) {
    gsub(/&lt;/, "<", text)
    gsub(/&gt;/, ">", text)
    gsub(/&quot;/, "\"", text)
    gsub(/&apos;/, "'", text)
    gsub(/&amp;/, "\\&", text)
    gsub(/\t/, " ", text)
    return text
}

function attribute(line, key) {
    if (!match(line, " " key "=\"[^\"]*\"")) {
        return ""
    }
    return plain(substr(line, RSTART + length(key) + 3, RLENGTH - length(key) - 4))
}

function skip(name, why) {
    skips[++skip_count] = name ": " (why == "" ? "no reason given" : why)
}

function finish_case() {
    if (name == "") {
        return
    }
    if (status == "fail") {
        failures[++fail_count] = name (why == "" ? "" : ": " why)
        for (i = line_count > tail_lines ? line_count - tail_lines + 1 : 1; i <= line_count; i++) {
            failures[fail_count] = failures[fail_count] "\n    | " said[i % tail_lines]
        }
    } else if (status == "run") {
        passed++
    } else if (missing) {
        failures[++fail_count] = name ": the program is missing (not built?)"
    } else {
        skip(name, reason)
    }
    name = ""
}

/<testcase / {
    finish_case()
    name = attribute($0, "name")
    status = attribute($0, "status")
    reason = why = ""
    missing = line_count = is_output = 0
}
/<system-out>/ { is_output = 1 }
is_output {
    text = $0
    sub(/^.*<system-out>/, "", text)
    sub(/<\/system-out>.*$/, "", text)
    if (text != "") {
        said[++line_count % tail_lines] = plain(text)
    }
}
/<\/system-out>/ { is_output = 0 }
/<failure / { why = attribute($0, "message") }
/<skipped / { missing = attribute($0, "message") !~ /SKIP_|DISABLED|Disabled/ }
/SKIP(PED( [^ ]*)?)?: / && reason == "" {
    reason = plain($0)
    sub(/^.*SKIP(PED( [^ ]*)?)?: */, "", reason)
    sub(/<\/system-out>.*$/, "", reason)
}
/SKIP: / { # the reason of a cmocka case stands before the line that it was skipped
    case_reason = plain($0)
    sub(/^.*SKIP: */, "", case_reason)
}
/(^|>)\[  SKIPPED \] / && status == "run" && !/test\(s\)/ {
    text = plain($0)
    sub(/^.*\[  SKIPPED \] /, "", text)
    if (!((name, text) in seen)) {
        seen[name, text] = 1
        skip(name, case_reason == "" ? text : text ": " case_reason)
        case_reason = ""
    }
}

END {
    finish_case()
    for (i = 1; i <= skip_count; i++) {
        print "SKIPPED " skips[i]
    }
    for (i = 1; i <= fail_count; i++) {
        print "FAILED  " failures[i]
    }
    if (passed + fail_count + skip_count == 0) {
        print "no test ran"
    }
    printf "%d passed, %d failed, %d skipped\n", passed, fail_count, skip_count
    exit fail_count > 0 || passed == 0 || (ctest_status != 0 && ctest_status != 8)
}
